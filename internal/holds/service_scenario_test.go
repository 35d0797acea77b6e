package holds_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestScenarios plays the stories in testdata/*.story. A line is an action and, after "->", its
// expected result. testdata/README.md describes the language.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.story")
	if err != nil || len(files) < 5 {
		t.Fatalf("found %d stories: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".story"), func(t *testing.T) {
			t.Parallel()
			play(t, file)
		})
	}
}

// scene plays a story. The story names its holds H1, H2 ..., in the order in which they are
// created.
type scene struct {
	*harness
	t     *testing.T
	holds map[string]holds.HoldID
	first map[string]holds.Outcome // the outcome that named each hold
	again func() string            // the last event that can be repeated, delivered once more
}

func play(t *testing.T, file string) {
	s := &scene{harness: newHarness(t), t: t, holds: make(map[string]holds.HoldID), first: make(map[string]holds.Outcome)}
	s.now = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	s.pass(t, 0)
	f, err := os.Open(file)
	stacktest.Must(t, err)
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for number := 1; lines.Scan(); number++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		happens, want, _ := strings.Cut(line, "->")
		want = strings.Join(strings.Fields(want), " ")
		if got := s.happen(strings.TrimSpace(happens), want); got != want {
			t.Fatalf("%s:%d: %s\n\tgot  %s\n\twant %s", file, number, line, got, want)
		}
	}
}

var sentences = []struct {
	form *regexp.Regexp
	act  func(s *scene, words []string, want string) string
}{
	{regexp.MustCompile(`^(\S+) has (\d+) of (\S+)$`), func(s *scene, w []string, _ string) string {
		capacity, _ := strconv.ParseInt(w[2], 10, 64)
		return brief(s.setInventory(s.t, w[1], parseSelection(w[3]), capacity))
	}},
	{regexp.MustCompile(`^(\S+) books (?:(\d+) of )?(\S+) (\S+?)(?: for (\S+))?(?: with key (\S+))?$`), (*scene).books},
	{regexp.MustCompile(`^(\S+) pays for (\S+) with (\S+)$`), func(s *scene, w []string, _ string) string {
		return brief(s.pay(s.t, s.hold(w[2]), w[3]))
	}},
	{regexp.MustCompile(`^(\S+) cancels key (\S+) on (\S+)$`), func(s *scene, w []string, _ string) string {
		return brief(s.release(s.t, holds.ReleaseRequest{Resource: w[3], RequestKey: w[2]}))
	}},
	{regexp.MustCompile(`^(\S+) (extends|starts to pay for) (\S+?)(?: by (\S+))?$`), (*scene).extends},
	{regexp.MustCompile(`^the reservation of (\S+) is cancelled$`), func(s *scene, w []string, _ string) string {
		return s.repeatable(func(cause string) holds.Outcome {
			return s.cancelReservation(s.t, holds.CancelRequest{EventID: cause, Hold: s.hold(w[1])})
		})
	}},
	{regexp.MustCompile(`^the event comes again$`), func(s *scene, _ []string, _ string) string { return s.again() }},
	{regexp.MustCompile(`^late payments are accepted if free$`), func(s *scene, _ []string, _ string) string {
		s.setPolicy(s.t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
		return ""
	}},
	{regexp.MustCompile(`^(\S+) cancels (\S+)$`), func(s *scene, w []string, _ string) string {
		return brief(s.release(s.t, holds.ReleaseRequest{Hold: s.hold(w[2])}))
	}},
	{regexp.MustCompile(`^(\S+) passes$`), func(s *scene, w []string, _ string) string {
		d, err := time.ParseDuration(w[1])
		stacktest.Must(s.t, err)
		s.pass(s.t, d)
		return ""
	}},
	{regexp.MustCompile(`^the worker sweeps$`), func(s *scene, _ []string, _ string) string {
		var names []string
		for _, o := range s.sweep(s.t) {
			names = append(names, s.name(o.Hold))
		}
		slices.Sort(names)
		return strings.TrimSpace(holds.EventHoldExpired + " " + strings.Join(names, " "))
	}},
	{regexp.MustCompile(`^left of (\S+) (\S+)$`), func(s *scene, w []string, _ string) string {
		var left []string
		for _, slot := range s.available(s.t, w[1], parseSelection(w[2])) {
			left = append(left, strconv.FormatInt(slot.Available, 10))
		}
		return strings.Join(left, " ")
	}},
	{regexp.MustCompile(`^(\S+) is$`), func(s *scene, w []string, _ string) string {
		view, found, err := s.service.GetHold(s.t.Context(), s.hold(w[1]))
		stacktest.Must(s.t, err)
		if !found {
			return "forgotten"
		}
		return string(view.State)
	}},
	{regexp.MustCompile(`^nothing is left of (\S+)$`), func(s *scene, w []string, _ string) string {
		s.assertNothingHeld(s.t, w[1])
		return ""
	}},
}

func (s *scene) happen(line, want string) string {
	for _, sentence := range sentences {
		if words := sentence.form.FindStringSubmatch(line); words != nil {
			return sentence.act(s, words, want)
		}
	}
	s.t.Fatalf("unknown line %q", line)
	return ""
}

// extends: user, verb, hold, by.
func (s *scene) extends(w []string, _ string) string {
	r := holds.ExtendRequest{Hold: s.hold(w[3]), PaymentStarted: w[2] != "extends"}
	if w[4] != "" {
		d, err := time.ParseDuration(w[4])
		stacktest.Must(s.t, err)
		r.TTLSeconds = int64(d / time.Second)
	}
	return s.repeatable(func(cause string) holds.Outcome {
		r.EventID = cause
		return s.extend(s.t, r)
	})
}

// repeatable decides an event and returns the time left of the hold that it extends. When the event
// is repeated, its outcome must be identical.
func (s *scene) repeatable(decide func(cause string) holds.Outcome) string {
	cause := uuid.NewString()
	first := decide(cause)
	text := brief(first)
	if data, extended := first.Data.(holds.HoldExtended); extended {
		text += " to " + data.ExpiresAt.Sub(s.now).String()
	}
	s.again = func() string {
		again := decide(cause)
		if got, want := exactText(s.t, again), exactText(s.t, first); got != want {
			s.t.Fatalf("the same event has the outcome\n\t%s\nand then\n\t%s", want, got)
		}
		return brief(again)
	}
	return text
}

// books: user, quantity, resource, slots, ttl, key.
func (s *scene) books(w []string, want string) string {
	r := holds.PlaceRequest{User: w[1], Resource: w[3], Selection: parseSelection(w[4]), RequestKey: w[6], StoredAt: s.now}
	if w[2] != "" {
		r.Quantity, _ = strconv.ParseInt(w[2], 10, 64)
	}
	if w[5] != "" {
		d, err := time.ParseDuration(w[5])
		stacktest.Must(s.t, err)
		r.TTLSeconds = seconds(int64(d / time.Second))
	}
	o := s.place(s.t, r)[0]
	text := brief(o)
	switch data := o.Data.(type) {
	case holds.HoldCreated:
		// The story names a hold when it expects its creation, once.
		name := strings.Fields(want + " - -")[1]
		if _, known := s.holds[name]; !known && strings.HasPrefix(name, "H") {
			s.holds[name], s.first[name] = o.Hold, o
		}
		text += " " + s.name(o.Hold)
		if data.Replayed {
			text += " replayed"
			if first := s.first[s.name(o.Hold)].Data.(holds.HoldCreated); !first.ExpiresAt.Equal(data.ExpiresAt.Time) {
				s.t.Fatalf("replayed with the deadline %v, was %v", data.ExpiresAt, first.ExpiresAt)
			}
		}
	case holds.HoldRejected:
		if data.Field != "" {
			text += " " + data.Field
		}
		if data.SoldOut != nil {
			for _, row := range data.Unavailable {
				text += fmt.Sprintf(" %s:%d/%d/%d", row.Slot, row.Capacity, row.Reserved, row.Held)
			}
			text += " retry"
			if data.RetryAt == nil {
				text += " never"
			} else {
				text += " in " + data.RetryAt.Sub(s.now).String()
			}
		}
		if data.HoldID != (holds.HoldID{}) {
			text += " " + s.name(data.HoldID)
		}
		if data.Replayed {
			text += " replayed"
		}
	}
	return text
}

// hold returns the hold with a name, or one that never existed.
func (s *scene) hold(name string) holds.HoldID {
	if id, known := s.holds[name]; known {
		return id
	}
	return holds.NewHoldID("nowhere")
}

func (s *scene) name(id holds.HoldID) string {
	for name, known := range s.holds {
		if known == id {
			return name
		}
	}
	return "unnamed"
}

// parseSelection parses a set of slots: nights as 2026-12-01..2026-12-03 (check-in..check-out),
// named slots as, or stock.
func parseSelection(text string) holds.SlotSelection {
	if in, out, found := strings.Cut(text, ".."); found {
		return holds.SlotSelection{CheckIn: in, CheckOut: out}
	}
	if text == holds.StockSlot {
		return holds.SlotSelection{}
	}
	return holds.SlotSelection{Slots: strings.Split(text, ",")}
}
