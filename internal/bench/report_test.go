package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/stack/stacktest"
)

// rates returns rounds with these rates, in which Redis was busy for half of the time.
func rates(perSecond ...float64) []Rate {
	rounds := make([]Rate, len(perSecond))
	for i, p := range perSecond {
		busy := map[string]float64{processRedis: 1e6 / p / 2}
		rounds[i] = Rate{Number: 1000, Seconds: 1000 / p, PerSecond: p, Processor: busy}
	}
	return rounds
}

// TestThroughputSum_Rounds_MediansOfRatios checks that ratios are medians of the ratios of the rounds.
func TestThroughputSum_Rounds_MediansOfRatios(t *testing.T) {
	t.Parallel()
	many := Throughput{
		Nights: 7, Resources: 1000, Workers: 1,
		Ceiling: rates(100, 100, 50), Holdfast: rates(50, 20, 20), Baseline: rates(5, 5, 5),
	}
	hot := Throughput{Nights: 7, Resources: 1, Workers: 1, Ceiling: rates(100, 100, 100), Holdfast: rates(100, 60, 20)}
	hot.sum(&many)
	many.sum(&many)
	if many.PerSecond != 20 || many.CeilingSecond != 100 || many.OfCeiling != 0.4 || many.BaselineSecond != 5 ||
		many.TimesBaseline != 4 || many.TimesMany != 1 {
		t.Errorf("%+v", many)
	}
	if hot.TimesMany != 2 || hot.TimesBaseline != 0 { // the median of 2, 3 and 1
		t.Errorf("%+v", hot)
	}
	if math.Abs(hot.CeilingBusy-0.5) > 1e-9 || hot.CeilingMicros[processRedis] != 5000 ||
		hot.ProcessorMicros[processRedis] != 1e6/60/2 {
		t.Errorf("%+v", hot)
	}
	if line := hot.line(); !strings.Contains(line, "Redis was busy for 50 % of the time only") {
		t.Error(line)
	}
	if median(0, nil) != 0 || medianRate(rates(1, 4), perSecond) != 2.5 {
		t.Error("median of no value, or of two values")
	}
	if _, err := newRate(1, 0, nil); err == nil {
		t.Error("no error for a duration of 0")
	}
}

// TestCheckGoals_MetAndJustMissed_Counted checks each goal with a figure that just meets it, and with one
// that just misses it.
func TestCheckGoals_MetAndJustMissed_Counted(t *testing.T) {
	t.Parallel()
	met := func() *Report {
		r := &Report{Payments: &Payments{OfCeiling: 0.5}}
		for nights, of := range map[int]float64{1: 0.5, 3: 0.5, 7: 0.5, 30: 0.6} {
			r.Throughputs = append(r.Throughputs,
				Throughput{
					Nights: nights, Resources: 1000, Workers: 1, OfCeiling: of,
					TimesBaseline: map[int]float64{7: 10, 30: 20}[nights], TimesMany: 1,
				},
				Throughput{Nights: nights, Resources: 1, Workers: 1, OfCeiling: 0.7, TimesMany: 1.3},
				Throughput{Nights: nights, Resources: 1000, Workers: 2}, Throughput{Nights: nights, Resources: 10, Workers: 1})
		}
		r.Latencies = []Latency{
			{Percent: 10, Quantiles: Quantiles{P99: 99}},
			{Percent: 50, Quantiles: Quantiles{P99: 20, P999: 99, Max: 99}},
			{Percent: 80, Quantiles: Quantiles{P99: 99}},
		}
		r.Expiries = []Expiry{{Late: Quantiles{P999: 500, Max: 999}}, {Notified: true, Late: Quantiles{P999: 999}}}
		return r
	}
	r := met()
	r.checkGoals()
	if len(r.Goals) != 14 || r.FailedGoals() != 0 {
		t.Errorf("%d goals, %d missed: %+v", len(r.Goals), r.FailedGoals(), r.Goals)
	}
	lower := func(resources int, change func(*Throughput)) func(*Report) {
		return func(r *Report) {
			for i := range r.Throughputs {
				if s := &r.Throughputs[i]; s.Resources == resources && s.Workers == 1 {
					change(s)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*Report)
		missed int
	}{
		"of the ceiling":     {lower(1000, func(s *Throughput) { s.OfCeiling -= 0.001 }), 4},
		"times the baseline": {lower(1000, func(s *Throughput) { s.TimesBaseline -= 0.001 }), 2},
		"times 1,000":        {lower(1, func(s *Throughput) { s.TimesMany -= 0.001 }), 4},
		"1 night, one hot":   {lower(1, func(s *Throughput) { s.OfCeiling -= 0.001 }), 1},
		"payments":           {func(r *Report) { r.Payments.OfCeiling -= 0.001 }, 1},
		"latency at 50":      {func(r *Report) { r.Latencies[1].P99 += 0.001 }, 1},
		"expiry":             {func(r *Report) { r.Expiries[0].Late.P999 += 0.001 }, 1},
		"no goal":            {func(r *Report) { r.Latencies[0].P99, r.Expiries[1].Late.P999 = 1e6, 1e6 }, 0},
	} {
		r := met()
		c.change(r)
		r.checkGoals()
		if r.FailedGoals() != c.missed {
			t.Errorf("%s: %d missed, want %d: %+v", name, r.FailedGoals(), c.missed, r.Goals)
		}
		for _, g := range r.Goals {
			if !g.Met && !strings.Contains(g.Name, name) {
				t.Errorf("%s: missed %s", name, g.Name)
			}
			if g.Met != (g.Bound == AtLeast && g.Found >= g.Want || g.Bound == AtMost && g.Found <= g.Want) {
				t.Errorf("%s: %+v", name, g)
			}
		}
	}
	none := &Report{}
	none.checkGoals()
	if text, err := json.Marshal(none); err != nil || !strings.Contains(string(text), `"goals":[]`) {
		t.Errorf("an empty report: %s, %v", text, err)
	}
}

// TestPlot_EveryBar_IsDrawn checks the bars, and the labels on those of Holdfast.
func TestPlot_EveryBar_IsDrawn(t *testing.T) {
	t.Parallel()
	r := &Report{}
	share := 0.11
	for _, nights := range []int{1, 3, 7, 30} {
		for _, k := range []scenario{{nights, 1000, 1}, {nights, 10, 1}, {nights, 1, 1}, {nights, 1000, 2}} {
			s := Throughput{
				Nights: k.nights, Resources: k.resources, Workers: k.workers,
				PerSecond: 20_000, CeilingSecond: 40_000, OfCeiling: share,
			}
			if k.resources == 1000 {
				s.BaselineSecond = 1000
			}
			r.Throughputs = append(r.Throughputs, s)
			share += 0.01
		}
	}
	path := filepath.Join(t.TempDir(), "holds.svg")
	if err := r.Plot(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fills, words := make(map[string]int), []string{}
	decoder := xml.NewDecoder(strings.NewReader(string(text)))
	for root := true; ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if root && token.Name.Local != "svg" {
				t.Errorf("the root element is %s, want svg", token.Name.Local)
			}
			root = false
			for _, a := range token.Attr {
				if fill, filled := strings.CutPrefix(a.Value, "fill:"); filled && a.Name.Local == "style" {
					fills[fill]++
				}
			}
		case xml.CharData:
			if word := strings.TrimSpace(string(token)); word != "" {
				words = append(words, word)
			}
		}
	}
	for _, colour := range []string{"#B0B0B0", "#1B5E8C", "#4A90C2", "#9CC8E6", "#C05A3C"} {
		if fills[colour] != 5 { // four bars, and one in the legend
			t.Errorf("%d bars of colour %s, want 5: %v", fills[colour], colour, fills)
		}
	}
	want := []string{
		"nights in a request", "1", "3", "7", "30", "50,000",
		"Holdfast, 1 resource (on the bars: share of Redis alone)",
		"0.11", "0.12", "0.13", "0.15", "0.16", "0.17", "0.19", "0.20", "0.21", "0.23", "0.24", "0.25",
	}
	for _, word := range want {
		if !slices.Contains(words, word) {
			t.Errorf("the plot lacks %q: %q", word, words)
		}
	}
	if err := r.Plot(filepath.Join(t.TempDir(), "none", "holds.svg")); err == nil {
		t.Error("no error for a directory that does not exist")
	}
}

// TestProcessorTimes_EndedProcesses_AreCounted checks that the CPU time of Postgres includes backends that
// have ended.
func TestProcessorTimes_EndedProcesses_AreCounted(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("CPU times need /proc")
	}
	t.Parallel()
	self, err := readStat(os.Getpid())
	if err != nil || self.parent != os.Getppid() {
		t.Errorf("%+v, %v; want the parent %d", self, err, os.Getppid())
	}
	if _, err := readStat(-1); err == nil {
		t.Error("no error for a process that does not exist")
	}
	conn, err := pgx.Connect(t.Context(), stacktest.Shared().PostgresURL)
	if err != nil {
		t.Fatal(err)
	}
	postmaster := stacktest.Shared().PostgresPID()
	before := familyTime(postmaster)
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM generate_series(1, 3000000)").Scan(&n); err != nil {
		t.Fatal(err)
	}
	backend := int(conn.PgConn().PID())
	found, err := readStat(backend)
	if err != nil || found.parent != postmaster || found.own == 0 {
		t.Errorf("the backend: %+v, %v", found, err)
	}
	if used := familyTime(postmaster) - before; used < found.own/2 { // ticks are rounded
		t.Errorf("familyTime is %s with a backend that used %s", used, found.own)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the backend to end", func() bool { _, err := readStat(backend); return err != nil })
	if used := familyTime(postmaster) - before; used < found.own/2 {
		t.Errorf("familyTime is %s with an ended backend that used %s", used, found.own)
	}
	unknown := processorTimes(nil)
	if unknown.since(nil) != nil || unknown.each(1) != nil {
		t.Error("figures from unknown CPU times")
	}
	known := processorTimes{"redis": 3 * time.Millisecond}.since(processorTimes{"redis": time.Millisecond}).each(100)
	if known["redis"] != 20 {
		t.Errorf("2 ms for 100 events: %v, want 20 µs", known)
	}
}

func TestPlural_Numbers_ThousandsApart(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{
		0: "0 holds", 1: "1 hold", 999: "999 holds", 1000: "1,000 holds", 1234567: "1,234,567 holds",
	} {
		if got := plural(n, "hold"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestLastLines_ManyLines_KeepsTheLast(t *testing.T) {
	t.Parallel()
	log := &lastLines{}
	for range 3 * logLinesMax {
		log.add("old\n")
	}
	log.add("new\n")
	if lines := strings.Split(log.String(), "\n"); len(lines) != logLinesMax || lines[len(lines)-1] != "new" {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}
