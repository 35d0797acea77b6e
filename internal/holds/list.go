package holds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

const (
	listReadMax  = 500 // holds that one call of list.lua reads
	listCallsMax = 4   // for one page
	liveReadMax  = 500 // resources that one call of live.lua counts
	liveCallsMax = 8   // for one partition
)

// Place is a place in the order of the live holds of a resource: deadlines first, ids second. It
// stays valid when its hold ends or gets another deadline. The zero Place is before all holds.
type Place struct {
	DeadlineMS int64
	UUID       string
}

// ErrPlace says that a text is not a place.
var ErrPlace = errors.New("not a place in a list of holds: want a hold id, or <hold id>@<deadline in ms>")

// ParsePlace parses <hold id>@<deadline in ms>, which PlaceText returns, and a hold id alone, for
// which the deadline is -1. It returns ErrPlace for any other text.
func ParsePlace(text string) (HoldID, int64, error) {
	id, deadline, found := strings.Cut(text, "@")
	hold, err := ParseHoldID(id)
	if err != nil {
		return HoldID{}, 0, ErrPlace
	}
	if !found {
		return hold, -1, nil
	}
	ms, err := strconv.ParseInt(deadline, 10, 64)
	if err != nil || ms < 0 {
		return HoldID{}, 0, ErrPlace
	}
	return hold, ms, nil
}

// PlaceText returns the place of a hold with a deadline, as ParsePlace reads it.
func PlaceText(id HoldID, deadlineMS int64) string {
	return id.String() + "@" + strconv.FormatInt(deadlineMS, 10)
}

// ListHolds returns the holds of a resource that can expire, in the order of their deadlines: those
// after a place, at most limit, and only of one user unless user is "". It does not return holds
// that are being paid for. It reads a bounded number of holds. Then next is the place after which
// to continue, also if the page has fewer than limit holds; it is nil when no more follow.
func (s *Service) ListHolds(
	ctx context.Context, resource string, after Place, user string, limit int,
) (page []HoldView, next *Place, err error) {
	w := s.beginWork()
	for range listCallsMax {
		c := w.newCall(scriptList, resource, after.DeadlineMS, after.UUID, listReadMax, user, limit-len(page))
		w.run(ctx, c)
		if err := c.Expect(3); err != nil {
			return nil, nil, fmt.Errorf("list holds of %s: %w", resource, err)
		}
		for i := 3; i+1 < len(c.Reply); i += 2 {
			hold, err := parseRecord(HoldID{Resource: resource, UUID: c.Reply[i]}, c.Reply[i+1])
			if err != nil {
				return nil, nil, err
			}
			page = append(page, hold.view())
		}
		if c.Reply[2] == "" {
			return page, nil, nil
		}
		if after.DeadlineMS, err = strconv.ParseInt(c.Reply[1], 10, 64); err != nil {
			return nil, nil, fmt.Errorf("list holds of %s: deadline of %s: %w", resource, c.Reply[2], ErrCorrupt)
		}
		if after.UUID = c.Reply[2]; len(page) == limit {
			break
		}
	}
	return page, &after, nil
}

func (h Hold) view() HoldView {
	return HoldView{
		ResourceID: h.ResourceID, HoldID: h.HoldID, State: h.State, RequestKey: h.RequestKey, UserID: h.UserID,
		SlotSelection: h.SlotSelection, Quantity: *h.Quantity, Metadata: h.Metadata,
		CreatedAt: h.CreatedAt, ExpiresAt: h.ExpiresAt,
	}
}

// CountHolds returns the number of holds of each resource that can expire.
func (s *Service) CountHolds(ctx context.Context, resources []string) ([]int64, error) {
	w := s.beginWork()
	if err := w.epochs.Err(); err != nil {
		return nil, err
	}
	calls := make([]*lua.Call, len(resources))
	for i, resource := range resources {
		calls[i] = w.newCall(scriptCount, resource)
	}
	w.run(ctx, calls...)
	counts := make([]int64, len(resources))
	for i, c := range calls {
		if err := c.Expect(1); err != nil {
			return nil, fmt.Errorf("count holds of %s: %w", resources[i], err)
		}
		var err error
		if counts[i], err = parseCount(c.Reply[0]); err != nil {
			return nil, fmt.Errorf("count holds of %s: %w", resources[i], err)
		}
	}
	return counts, nil
}

// LiveCount is the number of live holds of a resource.
type LiveCount struct {
	ResourceID string `json:"resource_id"`
	LiveHolds  int64  `json:"live_holds"`
}

// LiveCounts is the number of holds that can expire, in a namespace.
type LiveCounts struct {
	Total    int64       `json:"total"`
	Complete bool        `json:"complete"` // all resources were counted; else Total is too small
	Hottest  []LiveCount `json:"hottest"`  // the resources with the most holds
}

// CountLive counts the holds of the namespace that can expire, and returns the top resources with
// the most of them. It counts a bounded number of resources of each partition, and takes a moment
// in which holds come and go.
func (s *Service) CountLive(ctx context.Context, top int) (LiveCounts, error) {
	w := s.beginWork()
	if err := w.epochs.Err(); err != nil {
		return LiveCounts{}, err
	}
	counts := LiveCounts{Complete: w.epochs.Ready == record.AllPartitions}
	partitions := w.epochs.Ready.Sorted()
	for turn := 0; len(partitions) > 0; turn++ {
		if turn == liveCallsMax {
			counts.Complete = false
			break
		}
		calls := make([]*lua.Call, len(partitions))
		for i, p := range partitions {
			calls[i] = w.newPartitionCall(p, scriptLive, turn*liveReadMax, liveReadMax, top)
		}
		w.run(ctx, calls...)
		var more []int
		for i, c := range calls {
			resources, err := counts.add(c)
			if err != nil {
				return LiveCounts{}, fmt.Errorf("count live holds: %w", err)
			}
			if resources > int64(turn+1)*liveReadMax {
				more = append(more, partitions[i])
			}
		}
		partitions = more
	}
	slices.SortFunc(counts.Hottest, func(a, b LiveCount) int {
		return cmp.Or(cmp.Compare(b.LiveHolds, a.LiveHolds), strings.Compare(a.ResourceID, b.ResourceID))
	})
	counts.Hottest = counts.Hottest[:min(top, len(counts.Hottest))]
	return counts, nil
}

// add adds the reply of live.lua, and returns the number of resources in the partition's agenda.
func (l *LiveCounts) add(c *lua.Call) (resources int64, err error) {
	if err := c.Expect(2); err != nil {
		return 0, err
	}
	resources, err = parseCount(c.Reply[0])
	if err != nil {
		return 0, err
	}
	live, err := parseCount(c.Reply[1])
	if err != nil {
		return 0, err
	}
	l.Total += live
	for i := 2; i+1 < len(c.Reply); i += 2 {
		count, err := parseCount(c.Reply[i+1])
		if err != nil {
			return 0, err
		}
		l.Hottest = append(l.Hottest, LiveCount{c.Reply[i], count})
	}
	return resources, nil
}
