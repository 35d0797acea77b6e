package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// suite is a package with a test that passes, a test that always fails if SUITE_FAILS is set, and a test
// that fails only in its first run.
const suite = `package suite

import (
	"os"
	"testing"
)

func TestPasses(t *testing.T) {}

func TestFails(t *testing.T) {
	if os.Getenv("SUITE_FAILS") != "" {
		t.Fatal("it always fails")
	}
}

func TestFlaky(t *testing.T) {
	t.Run("sub", func(t *testing.T) {
		if _, err := os.Stat("ran"); err != nil {
			_ = os.WriteFile("ran", nil, 0o600)
			t.Fatal("it fails the first time")
		}
	})
}
`

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		fails   string
		source  string
		wantErr bool
		want    []string
	}{
		"a flaky test is reported and passes": {
			source: suite,
			want:   []string{"it fails the first time", "FLAKY suite TestFlaky: "},
		},
		"a test that fails again fails": {
			fails: "1", source: suite, wantErr: true,
			want: []string{"it always fails", "FAIL suite TestFails", "FLAKY suite TestFlaky: "},
		},
		"a package that panics is repeated, with the tests that did not run": {
			fails: "1", source: strings.Replace(suite, "TestPasses(t *testing.T) {", `TestPanics(t *testing.T) {
				if _, err := os.Stat("panicked"); err != nil {
					_ = os.WriteFile("panicked", nil, 0o600)
					panic("it panics the first time")
				}
			`, 1), wantErr: true,
			want: []string{"it panics the first time", "FAIL suite\n"},
		},
		"a package that does not build fails": {
			source: suite + "}", wantErr: true,
			want: []string{"expected declaration"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"go.mod": "module suite\n", "suite_test.go": c.source} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			flaky := filepath.Join(dir, "flaky")
			t.Setenv("FLAKY_FILE", flaky)
			t.Setenv("SUITE_FAILS", c.fails)
			t.Setenv("GOFLAGS", "")
			var out strings.Builder
			err := check(&out, []string{"-count=1"}, []string{"."})
			if (err != nil) != c.wantErr {
				t.Errorf("error %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the output lacks %q:\n%s", want, out.String())
				}
			}
			recorded, _ := os.ReadFile(flaky) // missing without a flaky test
			if want := strings.Count(out.String(), "FLAKY "); strings.Count(string(recorded), "suite TestFlaky\n") != want {
				t.Errorf("FLAKY_FILE has %q, want %d lines", recorded, want)
			}
		})
	}
}
