package stacktest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

func TestShared_AllServers_Run(t *testing.T) {
	t.Parallel()
	s := Shared()
	if s.NATSURL == "" || s.RedisURL == "" || s.PostgresURL == "" {
		t.Fatalf("URLs %q %q %q", s.NATSURL, s.RedisURL, s.PostgresURL)
	}
	conn, err := pgx.Connect(t.Context(), s.PostgresURL)
	Must(t, err)
	defer func() { Must(t, conn.Close(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "create schema "+Namespace(t)); err != nil {
		t.Error(err)
	}
}

func TestNamespace_SeveralCalls_FreshAndValid(t *testing.T) {
	t.Parallel()
	valid := regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)
	seen := map[string]bool{}
	long := strings.Repeat("Long", 20)
	for n, test := range []string{"TestX", "TestÜber/mit Zeichen-und.Punkt", "", long, long} {
		ns := namespace(int64(n)*1e9, test)
		if !valid.MatchString(ns) || seen[ns] {
			t.Errorf("namespace of %q: %q, seen %v", test, ns, seen[ns])
		}
		seen[ns] = true
	}
	if a, b := Namespace(t), Namespace(t); a == b {
		t.Errorf("the same namespace twice: %s", a)
	}
}

// TestLong_FourTurns_EachTestInOne checks that each test runs in the long form in one of four turns, and with 1.
func TestLong_FourTurns_EachTestInOne(t *testing.T) {
	long := func(selected, name string) bool {
		t.Setenv("HOLDFAST_TEST_LONG", selected)
		return Long(name)
	}
	var perTurn [4]int
	for i := range 100 {
		name, turns := fmt.Sprint("TestOne", i), 0
		for turn := range perTurn {
			selected := fmt.Sprintf("%d/4", turn)
			if !long(selected, name) {
				continue
			}
			turns, perTurn[turn] = turns+1, perTurn[turn]+1
			if !long(selected, name+"/case") {
				t.Errorf("%s: not its case", name)
			}
		}
		if turns != 1 || !long("1", name) || long("", name) {
			t.Errorf("%s has %d turns", name, turns)
		}
	}
	if slices.Min(perTurn[:]) == 0 {
		t.Errorf("tests per turn: %v", perTurn)
	}
}
