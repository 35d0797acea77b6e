package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Goal is a bound on a figure, and whether the figure meets it.
type Goal struct {
	Name  string  `json:"name"`
	Bound string  `json:"bound"` // at least, at most
	Want  float64 `json:"want"`
	Found float64 `json:"found"`
	Met   bool    `json:"met"`
}

// The bounds of goals.
const (
	AtLeast = "at least"
	AtMost  = "at most"
)

// checkGoals sets Goals. It skips the goals of figures that were not measured.
func (r *Report) checkGoals() {
	r.Goals = []Goal{}
	r.checkSales()
	r.checkLatencies()
	r.checkPeers()
	if r.Payments != nil {
		r.check(AtLeast, 0.6, r.Payments.OfCeiling, "payments: of their ceiling")
	}
	for _, e := range r.Expiries {
		if !e.Notified {
			r.check(AtMost, 250, e.Late.P999, "expiry without notifications: p99.9 in ms")
		}
	}
	r.checkOverloads()
	for _, s := range r.ScaleOuts {
		if want, known := scaleGoals[s.Workers]; known {
			what := plural(s.Workers, "worker") + " and as many shards"
			r.check(AtLeast, want, s.TimesOne, "%s: times one", what)
			r.check(AtMost, 1.15, s.MicrosTimesOne, "%s: CPU time of a hold, times that of one", what)
		}
	}
	if r.Consoles != nil && r.Consoles.MicrosTimes > 0 {
		r.check(AtMost, 1.02, r.Consoles.MicrosTimes, "%s: CPU time of a hold, times that without",
			plural(r.Consoles.Pages, "live page"))
	}
	if r.Idle != nil {
		r.check(AtMost, 1, r.Idle.Sum, "an idle worker: percent of a processor")
	}
	if len(r.Scaling) > 0 {
		first, last := r.Scaling[0], r.Scaling[len(r.Scaling)-1]
		r.check(AtMost, 700, last.RedisBytes, "%s: bytes of one in Redis", plural(last.Live, "live hold"))
		if micros := SumMicros(first.Rate.Processor); micros > 0 {
			r.check(AtMost, 1.2, SumMicros(last.Rate.Processor)/micros, "%s: CPU time of one more, times that at %s",
				plural(last.Live, "live hold"), grouped(first.Live))
		}
	}
}

// scaleGoals are the rates of some workers with as many shards, as multiples of one with one.
var scaleGoals = map[int]float64{2: 1.9, 3: 2.7}

// check adds a goal.
func (r *Report) check(bound string, want, found float64, format string, args ...any) {
	met := found >= want
	if bound == AtMost {
		met = found <= want
	}
	r.Goals = append(r.Goals, Goal{fmt.Sprintf(format, args...), bound, want, found, met})
}

func (r *Report) checkSales() {
	wanted := map[int]float64{1: 0.4, 3: 0.4, 7: 0.4, 30: 0.6} // of the ceiling, by nights
	for _, s := range r.Throughputs {
		switch {
		case s.Workers != 1:
		case s.Spread == spreadAlone && s.Nights == usualNights && s.ProcessorMicros != nil:
			r.check(AtMost, 130, SumMicros(s.ProcessorMicros), "%s: CPU µs of a hold", s.load())
			if least := s.CeilingMicros[processRedis]; least > 0 {
				r.check(AtMost, 1.6, s.ProcessorMicros[processRedis]/least,
					"%s: CPU time of Redis, times the least script", s.load())
			}
		case s.Spread != spreadEven:
		case s.Resources == manyResources && wanted[s.Nights] > 0:
			r.check(AtLeast, wanted[s.Nights], s.OfCeiling, "%s: of the ceiling", plural(s.Nights, "night"))
		case s.Resources == 1:
			r.check(AtLeast, 0.5, s.OfCeiling, "%s, one hot resource: of the ceiling", plural(s.Nights, "night"))
		}
	}
}

func (r *Report) checkLatencies() {
	withoutLocks := make(map[int]Latency) // by percent
	for _, l := range r.Latencies {
		if l.Strategy == strategyNone {
			withoutLocks[l.Percent] = l
		}
	}
	most := map[int]float64{0: 8, 50: 25, 80: 100} // p99 in ms, by percent
	for _, l := range r.Latencies {
		if l.Strategy != strategyRange || most[l.Percent] == 0 {
			continue
		}
		at := fmt.Sprintf("%d %% of the maximum", l.Percent)
		if l.Percent == 0 {
			at = grouped(int(l.PerSecond+0.5)) + "/s"
			if l.ProcessorMicros != nil {
				r.check(AtMost, 400, SumMicros(l.ProcessorMicros), "%s: CPU µs of a hold", at)
			}
		}
		r.check(AtMost, most[l.Percent], l.P99, "%s: p99 in ms", at)
		if none := withoutLocks[l.Percent]; l.Percent > 0 && none.P99 > 0 {
			r.check(AtMost, 1.2, l.P99/none.P99, "%s: p99 with locks, times that without", at)
		}
	}
}

// checkPeers compares Holdfast with Postgres alone, both durable and both known not to be, and with the lock libraries.
func (r *Report) checkPeers() {
	type key struct {
		name              string
		nights, resources int
	}
	rates := make(map[key]float64)
	for _, p := range r.Peers {
		rates[key{p.Name, p.Nights, p.Resources}] = p.Rate.PerSecond
	}
	for _, p := range r.Peers {
		against := map[string][]string{
			HoldfastDurable:  {PeerPostgres},
			HoldfastUnsynced: {PeerPostgresAsync, PeerRedsync, PeerRedislock},
			HoldfastGiven:    {PeerRedsync, PeerRedislock}, // on the same Redis
		}[p.Name]
		for _, name := range against {
			if rate := rates[key{name, p.Nights, p.Resources}]; rate > 0 {
				r.check(AtLeast, 1, p.Rate.PerSecond/rate, "%s, %s, %s: times %s",
					p.Name, plural(p.Nights, "night"), load{resources: p.Resources}, name)
			}
		}
		if p.Quarter != nil {
			r.check(AtMost, 5, p.Quarter.P50, "%s, at a quarter of its rate: p50 in ms", p.Name)
		}
	}
}

func (r *Report) checkOverloads() {
	servers := make(map[string][]Overload)
	for _, o := range r.Overloads {
		servers[o.Server] = append(servers[o.Server], o)
	}
	for _, server := range slices.Sorted(maps.Keys(servers)) {
		found := servers[server]
		best, worst, attempts, back := 0.0, found[0].PerSecond, 0.0, 0.0
		for _, o := range found {
			best, worst = max(best, o.PerSecond), min(worst, o.PerSecond)
			attempts, back = max(attempts, o.Attempts), max(back, o.BackSeconds)
		}
		what := strings.ToUpper(server[:1]) + server[1:] + " throttled"
		if best > 0 {
			r.check(AtLeast, 0.9, worst/best, "%s: the worst number of workers, of the best", what)
		}
		if last := found[len(found)-1]; last.Workers > found[0].Workers && found[0].PerSecond > 0 {
			r.check(AtLeast, 1, last.PerSecond/found[0].PerSecond, "%s: %d workers, times one", what, last.Workers)
		}
		r.check(AtMost, 1.2, attempts, "%s: attempts per event", what)
		r.check(AtMost, 5, back, "%s: seconds until as quick as before", what)
	}
}

// FailedGoals returns the number of missed goals.
func (r *Report) FailedGoals() int {
	missed := 0
	for _, g := range r.Goals {
		if !g.Met {
			missed++
		}
	}
	return missed
}
