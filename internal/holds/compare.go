package holds

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Difference is what Redis has otherwise than was told.
type Difference struct {
	Resource string `json:"resource_id"`
	What     string `json:"what"`
	Redis    string `json:"redis"` // "" = nothing
	Expected string `json:"told"`  // by outcomes and Postgres, "" = nothing
}

// recheckDelay is after how long a difference is looked at again. What is on its way has arrived by then.
const recheckDelay = termValidity + publishDelayMax

// retentionMargin is what is left out at the end of memory: it may be forgotten a little earlier or later.
const retentionMargin = time.Minute

// Compare tells what Redis has otherwise than it would be filled with, without writing anything. A
// difference is told if it is the same after a while: meanwhile what was decided is published. Where
// every hold changes all the time, some may still be told that are none.
func (k *Supervisor) Compare(ctx context.Context, progress func(string)) (r RebuildResult, found []Difference, err error) {
	began := time.Now()
	e, err := k.EpochStore.Epoch(ctx)
	if err != nil {
		return r, nil, err
	}
	if !e.Complete {
		return r, nil, fmt.Errorf("redis is being filled again now: %w", &RebuildingError{e.Progress})
	}
	policies, err := k.policies(ctx)
	if err != nil {
		return r, nil, err
	}
	a := &rebuild{Supervisor: k, projection: NewProjection(policies), report: progress}
	if err := a.connect(ctx); err != nil {
		return r, nil, err
	}
	defer func() { _ = a.client.Close() }() // nothing is on its way
	defer k.closeInspectClient()
	gaps, err := a.OutcomeLog.Gaps(ctx, a.since())
	var last uint64
	if err == nil {
		last, err = a.readOutcomes(ctx, 0)
	}
	for round := 0; err == nil; round++ {
		var second []Difference
		if err = a.addPending(ctx); err == nil {
			r, second, err = a.compare(ctx)
		}
		if round == 1 {
			found = slices.DeleteFunc(found, func(d Difference) bool { return !slices.Contains(second, d) })
		} else {
			found = second
		}
		if err != nil || len(found) == 0 || round == 1 {
			break
		}
		a.reportProgress(fmt.Sprintf("looking again at %d differences", len(found)))
		if err = sleep(ctx, recheckDelay); err == nil {
			last, err = a.readOutcomes(ctx, last)
		}
	}
	r.Outcomes, r.Gaps, r.Took = a.projection.applied, gaps, time.Since(began)
	slices.SortFunc(found, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.What, b.What))
	})
	return r, found, err
}

// compare looks once.
func (a *rebuild) compare(ctx context.Context) (r RebuildResult, found []Difference, err error) {
	clock, err := a.client.Time(ctx).Result()
	if err != nil {
		return r, nil, fmt.Errorf("read the clock of redis: %w", err)
	}
	now := clock.UnixMilli()
	others, err := a.listResources(ctx)
	if err != nil {
		return r, nil, err
	}
	one := func(p *plan) error {
		delete(others, p.resource)
		r.count(p)
		a.reportProgress(fmt.Sprintf("comparing, %d resources", r.Resources))
		some, err := a.compareOne(ctx, p, now)
		found = append(found, some...)
		return err
	}
	if err = a.projection.eachPlan(now, one); err != nil {
		return r, nil, err
	}
	for resource := range others {
		some, err := a.compareOne(ctx, &plan{resource: resource, live: newLiveTotals()}, now)
		if err != nil {
			return r, nil, err
		}
		found = append(found, some...)
	}
	return r, found, nil
}

// listResources returns those of which Redis has records.
func (a *rebuild) listResources(ctx context.Context) (map[string]struct{}, error) {
	all := make(map[string]struct{})
	keys := a.client.Scan(ctx, 0, string(a.keys)+":{*}:*:records", scanMax).Iterator()
	for keys.Next(ctx) {
		_, rest, _ := strings.Cut(keys.Val(), "}:")
		if resource, found := strings.CutSuffix(rest, ":records"); found && ResourcePattern.MatchString(resource) {
			all[resource] = struct{}{}
		}
	}
	if err := keys.Err(); err != nil {
		return nil, fmt.Errorf("look for resources: %w", err)
	}
	return all, nil
}

// compareOne compares what one resource has with what it must have.
func (a *rebuild) compareOne(ctx context.Context, p *plan, now int64) (found []Difference, err error) {
	prefix := a.keys.prefix(p.resource)
	hashes, err := a.readHashes(ctx, prefix+"records", prefix+"counts", prefix+"users")
	if err != nil {
		return nil, fmt.Errorf("compare resource %s: %w", p.resource, err)
	}
	suffixes, answers := p.answersAfter(now + retentionMargin.Milliseconds())
	values, err := a.readStrings(ctx, prefix, suffixes)
	if err != nil {
		return nil, fmt.Errorf("compare resource %s: %w", p.resource, err)
	}
	differs := func(what, has, expected string) {
		if has != expected {
			found = append(found, Difference{p.resource, what, has, expected})
		}
	}
	lines := hashes[0]
	for record := range slices.Chunk(p.records, 2) {
		id := record[0]
		line, there := lines[id]
		delete(lines, id)
		if expected := a.summarizeHold(record[1], now); expected != "" || !there {
			differs("hold "+id, a.summarizeHold(line, now), expected)
		}
	}
	for id, line := range lines {
		differs("hold "+id, a.summarizeHold(line, now), "")
	}
	a.compareSums("held of slot ", hashes[1], p.live.counts, differs)
	users, index := splitUsers(hashes[2])
	a.compareSums("live holds of user ", users, p.live.users, differs)
	a.compareIndex(index, p.live.index, differs)
	for i, suffix := range suffixes {
		differs("answer to "+suffix, summarizeAnswer(values[i]), summarizeAnswer(answers[i]))
	}
	return found, nil
}

// answersAfter are the suffixes and values of the answers that are remembered after a time.
func (one *plan) answersAfter(at int64) (suffixes, answers []string) {
	isAnswer := func(suffix string) bool {
		return strings.HasPrefix(suffix, "request:") || strings.HasPrefix(suffix, "extension:")
	}
	for s := range slices.Chunk(one.strings, 2) {
		if isAnswer(s[0]) {
			suffixes, answers = append(suffixes, s[0]), append(answers, s[1])
		}
	}
	for s := range slices.Chunk(one.expiring, 3) {
		if until, _ := strconv.ParseInt(s[2], 10, 64); until > at && isAnswer(s[0]) {
			suffixes, answers = append(suffixes, s[0]), append(answers, s[1])
		}
	}
	return suffixes, answers
}

func (*rebuild) compareSums(what string, has map[string]string, want map[string]int64, differs func(what, has, expected string)) {
	for name, sum := range want {
		differs(what+name, has[name], strconv.FormatInt(sum, 10))
		delete(has, name)
	}
	for name, sum := range has {
		differs(what+name, sum, "")
	}
}

// compareIndex compares which holds are found by their users and slots. What they are called tells users.
func (*rebuild) compareIndex(has, want map[string]string, differs func(what, has, expected string)) {
	for field, id := range want {
		if has[field] != id {
			differs("index of hold "+id, has[field], id)
		}
		delete(has, field)
	}
	for _, id := range has {
		differs("index of hold "+id, id, "")
	}
}

// summarizeHold is what is compared of a record: its state, deadline and quantity. One that has lapsed is
// expired, whether it was swept or not, and one that is soon forgotten is nothing.
func (a *rebuild) summarizeHold(line string, now int64) string {
	if line == "" {
		return ""
	}
	hold, err := parseRecord(HoldID{}, line)
	if err != nil {
		return "damaged"
	}
	margin := retentionMargin.Milliseconds()
	switch {
	case hold.State == Held && hold.ExpiresAt.UnixMilli() <= now:
		hold.State = Expired
	case hold.State != Held && hold.State != Confirming && hold.EndedAt.UnixMilli()+a.Policy.RequestKeyTTL.Milliseconds() < now+margin:
		return ""
	}
	return fmt.Sprintf("%s, %d until %s", hold.State, hold.Quantity, hold.ExpiresAt.Format(TimeFormat))
}

// summarizeAnswer is what is compared of a remembered answer: all but who has had it first, and what was
// only echoed.
func summarizeAnswer(line string) string {
	words := strings.SplitN(line, " ", 6)
	if len(words) < 6 {
		return line // to an extension
	}
	return strings.Join([]string{words[0], words[3], words[4]}, " ")
}
