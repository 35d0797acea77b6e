package bench

import "fmt"

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
	check := func(bound string, want, found float64, format string, args ...any) {
		met := found >= want
		if bound == AtMost {
			met = found <= want
		}
		r.Goals = append(r.Goals, Goal{fmt.Sprintf(format, args...), bound, want, found, met})
	}
	throughputs := make(map[scenario]Throughput)
	for _, s := range r.Throughputs {
		throughputs[scenario{s.Nights, s.Resources, s.Workers}] = s
	}
	nights := []int{1, 3, 7, 30}
	ofCeiling := map[int]float64{1: 0.5, 3: 0.5, 7: 0.5, 30: 0.6}
	for _, n := range nights {
		if s, measured := throughputs[scenario{n, manyResources, 1}]; measured {
			check(AtLeast, ofCeiling[n], s.OfCeiling, "%s: of the ceiling", plural(n, "night"))
		}
	}
	timesBaseline := map[int]float64{7: 10, 30: 20}
	for _, n := range nights {
		if s, measured := throughputs[scenario{n, manyResources, 1}]; measured && timesBaseline[n] > 0 {
			check(AtLeast, timesBaseline[n], s.TimesBaseline, "%s: times the baseline", plural(n, "night"))
		}
	}
	for _, n := range nights {
		if s, measured := throughputs[scenario{n, 1, 1}]; measured {
			check(AtLeast, 1.3, s.TimesMany, "%s, one hot resource: times 1,000 resources", plural(n, "night"))
		}
	}
	if s, measured := throughputs[scenario{1, 1, 1}]; measured {
		check(AtLeast, 0.7, s.OfCeiling, "1 night, one hot resource: of the ceiling")
	}
	if r.Payments != nil {
		check(AtLeast, 0.5, r.Payments.OfCeiling, "payments: of their ceiling")
	}
	for _, l := range r.Latencies {
		if l.Percent == 50 {
			check(AtMost, 20, l.P99, "latency at 50 %%: p99 in ms")
		}
	}
	for _, e := range r.Expiries {
		if !e.Notified {
			check(AtMost, 500, e.Late.P999, "expiry without notifications: p99.9 in ms")
		}
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
