package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// queueOf returns a queue of events of these resources, each with a body of 10 bytes: "r7" and spaces for
// the seventh event of r.
func queueOf(resources ...string) *queue {
	q, number := newQueue(), make(map[string]int)
	for _, r := range resources {
		number[r]++
		body := fmt.Sprintf("%-10s", fmt.Sprint(r, number[r]))
		m := &nats.Msg{Subject: ns.In(BookingRequested, r), Data: []byte(body)}
		q.add(&delivery{msg: m, bytes: len(body)})
	}
	return q
}

// namesOf returns which events these are.
func namesOf(batch []*delivery) (names []string) {
	for _, d := range batch {
		names = append(names, strings.TrimSpace(string(d.msg.Data)))
	}
	return names
}

// TestQueue_Take_GathersResources checks which events a batch has when not all fit: those of the first
// resources, each in its order. Nothing is lost, and the first event is always in it.
func TestQueue_Take_GathersResources(t *testing.T) {
	t.Parallel()
	mixed := []string{"a", "b", "c", "a", "b", "c", "a", "d", "b"}
	for name, test := range map[string]struct {
		resources     []string
		number, bytes int
		want          [][]string
	}{
		"all fit": {mixed, 9, 90, [][]string{{"a1", "b1", "c1", "a2", "b2", "c2", "a3", "d1", "b3"}}},
		"few resources": {mixed, 5, 90, [][]string{
			{"a1", "b1", "a2", "b2", "a3"}, {"c1", "c2", "d1", "b3"},
		}},
		"exactly one resource": {mixed, 3, 90, [][]string{
			{"a1", "a2", "a3"}, {"b1", "b2", "b3"}, {"c1", "c2", "d1"},
		}},
		"one at a time": {mixed[:4], 1, 90, [][]string{{"a1"}, {"b1"}, {"c1"}, {"a2"}}},
		"few bytes": {mixed, 5, 25, [][]string{
			{"a1", "b1", "a2"}, {"c1", "b2", "c2"}, {"a3", "d1", "b3"},
		}},
		"fewer bytes than one event": {mixed[:2], 5, 1, [][]string{{"a1"}, {"b1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := queueOf(test.resources...)
			q.close()
			var got [][]string
			for batch := q.take(test.number, test.bytes); len(batch) > 0; batch = q.take(test.number, test.bytes) {
				got = append(got, namesOf(batch))
			}
			if !slices.EqualFunc(got, test.want, slices.Equal) {
				t.Errorf("batches %v, want %v", got, test.want)
			}
		})
	}
}

// TestQueue_HotResource_LeavesRoom checks that a resource with many events takes no more of a batch than
// one call of a script decides, so that others wait for less.
func TestQueue_HotResource_LeavesRoom(t *testing.T) {
	t.Parallel()
	const most = holds.GroupRequestsMax
	q := queueOf(append(slices.Repeat([]string{"hot"}, 2*most), "a", "b")...)
	batch := q.take(most+1, 1<<20)
	if got := namesOf(batch)[most:]; len(batch) != most+1 || got[0] != "a1" {
		t.Errorf("a batch of %d ends with %v, want a1 after %d of the hot resource", len(batch), got, most)
	}
	if got := namesOf(q.take(most+2, 1<<20)); got[0] != fmt.Sprint("hot", most+1) || got[most] != "b1" {
		t.Errorf("the next batch is %v, want the other events in their order", got)
	}
}
