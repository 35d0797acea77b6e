package events

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestDeadLetters_Pages_AreTheListInEitherOrder reads dead letters page by page, of a stream from which many
// were removed, and compares them with what is read at once.
func TestDeadLetters_Pages_AreTheListInEitherOrder(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	d := b.deadLetters()
	page := func(deadLetters iter.Seq2[*DeadLetter, error], most int) (seqs []uint64) {
		t.Helper()
		for l, err := range deadLetters {
			if err != nil {
				t.Fatal(err)
			}
			if seqs = append(seqs, l.Seq); len(seqs) == most {
				break
			}
		}
		return seqs
	}
	if got := page(d.Before(t.Context(), DeadLetterFilter{}, true, 0), 1); got != nil {
		t.Errorf("of an empty stream: %v", got)
	}
	const number = 5 * newestBlock
	for i := range number {
		m := nats.NewMsg(b.ns.DLQ(ReasonMalformed))
		if i%3 == 0 {
			m.Subject = b.ns.DLQ(ReasonPoison)
		}
		m.Data = []byte("x")
		m.Header.Set(HeaderDLQReason, m.Subject[len(b.ns.DLQ("")):])
		m.Header.Set(HeaderDLQSubject, onRequest)
		if _, err := b.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for seq := uint64(newestBlock); seq < 4*newestBlock; seq++ { // more than a block, and pieces of others
		if seq%50 != 0 {
			if err := d.Remove(t.Context(), seq); err != nil {
				t.Fatal(err)
			}
		}
	}
	middle, err := d.Get(t.Context(), newestBlock/2)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]DeadLetterFilter{
		"all": {}, "a reason": {Reasons: []string{ReasonPoison}}, "since": {Since: middle.StoredAt}, "until": {Until: middle.StoredAt},
		"none": {Since: time.Now().Add(time.Hour)}, "with bodies": {ResourceID: "room"},
	} {
		want := page(d.All(t.Context(), f, false), math.MaxInt)
		if name == "all" && len(want) != number-3*newestBlock+3*newestBlock/50 {
			t.Errorf("there are %d", len(want))
		}
		for _, newest := range []bool{false, true} {
			read := d.After
			if newest {
				slices.Reverse(want)
				read = d.Before
			}
			for _, size := range []int{math.MaxInt, 170} {
				var got []uint64
				for after := uint64(0); ; after = got[len(got)-1] {
					next := page(read(t.Context(), f, false, after), size)
					if got = append(got, next...); len(next) < size {
						break
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s, newest first %v, %d a page: got\n%v\nwant\n%v", name, newest, size, got, want)
				}
			}
		}
	}
	// A page goes on where the last one ended, also when that dead letter was removed.
	if got := page(d.Before(t.Context(), DeadLetterFilter{}, true, newestBlock+1), 1); fmt.Sprint(got) != fmt.Sprint([]uint64{newestBlock}) {
		t.Errorf("before a removed one: %v", got)
	}
	if got := page(d.After(t.Context(), DeadLetterFilter{}, true, newestBlock+1), 1); fmt.Sprint(got) != fmt.Sprint([]uint64{newestBlock + 50}) {
		t.Errorf("after a removed one: %v", got)
	}
	if got := page(d.After(t.Context(), DeadLetterFilter{}, true, math.MaxUint64), 1); got != nil {
		t.Errorf("after the last: %v", got)
	}
}
