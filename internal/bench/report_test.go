package bench

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
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
		Compared: Compared{Ceiling: rates(100, 100, 50), Holdfast: rates(50, 20, 20)},
	}
	hot := Throughput{
		Nights: 7, Resources: 1, Workers: 1,
		Compared: Compared{Ceiling: rates(100, 100, 100), Holdfast: rates(100, 60, 20)},
	}
	hot.sum(&many)
	many.sum(&many)
	if many.PerSecond != 20 || many.CeilingSecond != 100 || many.OfCeiling != 0.4 || many.TimesMany != 1 {
		t.Errorf("%+v", many)
	}
	if hot.TimesMany != 2 { // the median of 2, 3 and 1
		t.Errorf("%+v", hot)
	}
	if math.Abs(hot.CeilingBusy-0.5) > 1e-9 || hot.CeilingMicros[processRedis] != 5000 ||
		hot.ProcessorMicros[processRedis] != 1e6/60/2 {
		t.Errorf("%+v", hot)
	}
	if median(0, nil) != 0 || medianRate(rates(1, 4), perSecond) != 2.5 {
		t.Error("median of no value, or of two values")
	}
	if _, err := newRate(1, 0, nil); err == nil {
		t.Error("no error for a duration of 0")
	}
}

// goalsMet returns a report whose figures just meet every goal.
func goalsMet() *Report {
	r := &Report{
		Payments: &Compared{OfCeiling: 0.6}, Consoles: &Consoles{Pages: 10, MicrosTimes: 1.02}, Idle: &Idle{Sum: 1},
		Expiries: []Expiry{{Late: Quantiles{P999: 250, Max: 999}}, {Notified: true, Late: Quantiles{P999: 999}}},
	}
	for nights, of := range map[int]float64{1: 0.4, 3: 0.4, 7: 0.4, 30: 0.6} {
		r.Throughputs = append(r.Throughputs,
			Throughput{Nights: nights, Resources: 1000, Workers: 1, Compared: Compared{OfCeiling: of}},
			Throughput{Nights: nights, Resources: 1, Workers: 1, Compared: Compared{OfCeiling: 0.5}},
			Throughput{Nights: nights, Resources: 1000, Workers: 2}, Throughput{Nights: nights, Resources: 10, Workers: 1})
	}
	r.Throughputs = append(r.Throughputs, Throughput{
		Nights: 3, Resources: 100_000, Spread: spreadAlone, Workers: 1,
		Compared: Compared{
			ProcessorMicros: map[string]float64{processWorker: 50, processRedis: 32,
				processNATS: 40, processPostgres: 8, processBench: 99},
			CeilingMicros: map[string]float64{processRedis: 20},
		},
	}, Throughput{Nights: 3, Resources: 100_000, Spread: spreadZipf, Workers: 1})
	for percent, p99 := range map[int]float64{0: 8, 10: 999, 50: 24, 80: 96} {
		use := map[string]float64{processNATS: 400}
		r.Latencies = append(r.Latencies,
			Latency{
				Strategy: strategyRange, Percent: percent, PerSecond: 1000, Quantiles: Quantiles{P99: p99}, ProcessorMicros: use,
			},
			Latency{Strategy: strategyNone, Percent: percent, PerSecond: 1000, Quantiles: Quantiles{P99: p99 / 1.2}})
	}
	for name, rate := range map[string]float64{
		HoldfastDurable: 9000, HoldfastUnsynced: 12_000, PeerPostgres: 9000, PeerPostgresAsync: 12_000, PeerRedsync: 12_000,
		PeerRedislock: 11_000, PeerScript: 50_000,
	} {
		r.Peers = append(r.Peers, Peer{Name: name, Nights: 3, Resources: 1000, Rate: Rate{PerSecond: rate}})
	}
	r.Peers = append(r.Peers, Peer{
		Name: HoldfastDurable, Nights: 7, Resources: 1, Rate: Rate{PerSecond: 1}, // nothing to compare with
		Quarter: &Latency{Quantiles: Quantiles{P50: 5, P99: 99}},
	})
	for workers, rate := range []float64{100, 90, 100} {
		r.Overloads = append(r.Overloads, Overload{
			Server: processRedis, Workers: workers + 1, PerSecond: rate, Attempts: 1.2, BackSeconds: 5,
		})
	}
	for workers, rate := range []float64{100, 190, 270} {
		s := ScaleOut{Workers: workers + 1, Rates: []Rate{{
			PerSecond: rate, Processor: map[string]float64{processRedis: 100 + 15*min(1, float64(workers)), processBench: 9},
		}}}
		r.ScaleOuts = append(r.ScaleOuts, s)
	}
	for i := range r.ScaleOuts {
		r.ScaleOuts[i].sum(&r.ScaleOuts[0])
	}
	for _, live := range []int{10_000, 1_000_000} {
		use := map[string]float64{processWorker: map[int]float64{10_000: 100, 1_000_000: 120}[live]}
		r.Scaling = append(r.Scaling, Scaling{Live: live, RedisBytes: 700, Rate: Rate{Processor: use}})
	}
	return r
}

// TestCheckGoals_MetAndJustMissed_Counted checks each goal with a figure that just meets it, and with one
// that just misses it.
func TestCheckGoals_MetAndJustMissed_Counted(t *testing.T) {
	t.Parallel()
	r := goalsMet()
	r.checkGoals()
	if len(r.Goals) != 35 || r.FailedGoals() != 0 {
		t.Errorf("%d goals, %d missed: %+v", len(r.Goals), r.FailedGoals(), r.Goals)
	}
	sales := func(change func(*Throughput)) func(*Report) {
		return func(r *Report) {
			for i := range r.Throughputs {
				if s := &r.Throughputs[i]; s.Workers == 1 {
					change(s)
				}
			}
		}
	}
	latencies := func(strategy string, change func(*Latency)) func(*Report) {
		return func(r *Report) {
			for i := range r.Latencies {
				if l := &r.Latencies[i]; l.Strategy == strategy {
					change(l)
				}
			}
		}
	}
	slower := func(name string) func(*Report) {
		return func(r *Report) {
			for i := range r.Peers {
				if r.Peers[i].Name == name {
					r.Peers[i].Rate.PerSecond *= 0.999
				}
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*Report)
		missed int
	}{
		"of the ceiling":     {sales(func(s *Throughput) { s.OfCeiling -= 0.001 }), 8},
		"CPU µs of a hold":   {sales(func(s *Throughput) { s.ProcessorMicros = map[string]float64{processNATS: 130.1} }), 1},
		"the least script":   {sales(func(s *Throughput) { s.CeilingMicros = map[string]float64{processRedis: 19.9} }), 1},
		"p99 in ms":          {latencies(strategyRange, func(l *Latency) { l.P99 = 100.1 }), 5},
		"without":            {latencies(strategyNone, func(l *Latency) { l.P99 *= 0.99 }), 2},
		"1,000/s: CPU":       {latencies(strategyRange, func(l *Latency) { l.ProcessorMicros["nats"] = 401 }), 1},
		"all synced":         {slower(HoldfastDurable), 1},
		"unsynced":           {slower(HoldfastUnsynced), 2}, // as quick as Postgres and redsync, and quicker than redislock
		"p50 in ms":          {func(r *Report) { r.Peers[len(r.Peers)-1].Quarter.P50 += 0.001 }, 1},
		"payments":           {func(r *Report) { r.Payments.OfCeiling -= 0.001 }, 1},
		"expiry":             {func(r *Report) { r.Expiries[0].Late.P999 += 0.001 }, 1},
		"the worst number":   {func(r *Report) { r.Overloads[1].PerSecond -= 0.1 }, 1},
		"3 workers":          {func(r *Report) { r.Overloads[2].PerSecond -= 0.1 }, 1},
		"attempts":           {func(r *Report) { r.Overloads[0].Attempts += 0.001 }, 1},
		"seconds until":      {func(r *Report) { r.Overloads[0].BackSeconds += 0.001 }, 1},
		"3 workers and as":   {func(r *Report) { r.ScaleOuts[2].TimesOne -= 0.001 }, 1},
		"CPU time of a hold": {func(r *Report) { r.ScaleOuts[1].MicrosTimesOne += 0.001 }, 1},
		"10 live pages":      {func(r *Report) { r.Consoles.MicrosTimes += 0.001 }, 1},
		"an idle worker":     {func(r *Report) { r.Idle.Sum += 0.001 }, 1},
		"bytes of one":       {func(r *Report) { r.Scaling[1].RedisBytes += 0.001 }, 1},
		"CPU time of one":    {func(r *Report) { r.Scaling[1].Rate.Processor[processWorker] += 0.1 }, 1},
		"no goal":            {func(r *Report) { r.Expiries[1].Late.P999, r.Peers[0].Max = 1e6, 1e6 }, 0},
	} {
		r := goalsMet()
		c.change(r)
		r.checkGoals()
		if r.FailedGoals() != c.missed {
			t.Errorf("%s: %d missed, want %d: %+v", name, r.FailedGoals(), c.missed, r.Goals)
		}
		named := c.missed == 0
		for _, g := range r.Goals {
			named = named || !g.Met && strings.Contains(g.Name, name)
			if g.Met != (g.Bound == AtLeast && g.Found >= g.Want || g.Bound == AtMost && g.Found <= g.Want) {
				t.Errorf("%s: %+v", name, g)
			}
		}
		if !named {
			t.Errorf("%s: another goal is missed: %+v", name, r.Goals)
		}
	}
	none := &Report{}
	none.checkGoals()
	if text, err := json.Marshal(none); err != nil || !strings.Contains(string(text), `"goals":[]`) {
		t.Errorf("an empty report: %s, %v", text, err)
	}
}

// svgText returns the words of an SVG file, and how often each colour is the colour of a line.
func svgText(t *testing.T, path string) (words []string, strokes map[string]int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	strokes = make(map[string]int)
	for decoder := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return words, strokes
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			for _, a := range token.Attr {
				for part := range strings.SplitSeq(a.Value, ";") {
					if colour, found := strings.CutPrefix(part, "stroke:"); found && a.Name.Local == "style" {
						strokes[colour]++
					}
				}
			}
		case xml.CharData:
			if word := strings.TrimSpace(string(token)); word != "" {
				words = append(words, word)
			}
		}
	}
}

// TestPlots_EveryFigure_IsDrawn checks that each way of placing holds has a line and is in the legend, and
// that the axes have units.
func TestPlots_EveryFigure_IsDrawn(t *testing.T) {
	t.Parallel()
	r := &Report{}
	for i, as := range styles {
		for _, nights := range []int{1, 3, 7, 30} {
			for _, what := range peerLoads {
				r.Peers = append(r.Peers, Peer{
					Name: as.name, Nights: nights, Resources: what.resources,
					Rate: Rate{PerSecond: float64(40_000 / (i + 1) / nights)}, Quantiles: Quantiles{P50: 1, P99: 20},
				})
			}
		}
	}
	for _, strategy := range strategies {
		for _, rate := range []float64{1000, 5000, 8000} {
			r.Latencies = append(r.Latencies, Latency{
				Strategy: strategy, PerSecond: rate, Quantiles: Quantiles{P50: rate / 1000, P99: rate / 100},
			})
		}
	}
	dir := t.TempDir()
	for name, draw := range map[string]struct {
		to   func(string) error
		want []string
	}{
		"holds.svg": {r.PlotHolds, []string{
			"nights in a request", "holds per second (logarithmic)", "on 1,000 resources", "on 1 resource",
			"1", "3", "7", "30", "10,000",
		}},
		"latency.svg": {r.PlotLatency, []string{
			"holds per second", "latency in ms (logarithmic)", "Holdfast, locks range, p99",
			"Holdfast, locks none, p50", "8,000",
		}},
	} {
		path := filepath.Join(dir, name)
		if err := draw.to(path); err != nil {
			t.Fatal(err)
		}
		words, strokes := svgText(t, path)
		for _, as := range styles {
			draw.want = append(draw.want, as.name)
			red, green, blue, _ := as.colour.RGBA()
			if colour := fmt.Sprintf("#%02X%02X%02X", red>>8, green>>8, blue>>8); strokes[colour] == 0 {
				t.Errorf("%s: no line of %s (%s): %v", name, as.name, colour, strokes)
			}
		}
		for _, word := range draw.want {
			if !slices.Contains(words, word) {
				t.Errorf("%s lacks %q: %q", name, word, words)
			}
		}
		if err := draw.to(filepath.Join(dir, "none", name)); err == nil {
			t.Error("no error for a directory that does not exist")
		}
	}
}

// TestOthersBusy_Times_NeverMoreThanTheProcessors checks how busy other programs kept the machine: from the
// time in which processors were busy, not from the load average, which also counts threads that wait.
func TestOthersBusy_Times_NeverMoreThanTheProcessors(t *testing.T) {
	t.Parallel()
	const before = "cpu  100 5 50 9000 300 10 20 15 70 3\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	const after = "cpu  200 5 100 9030 310 10 20 25 170 3\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	machine := busyTime(after) - busyTime(before)
	if want := 160 * tick; machine != want { // user, system and stolen time; guests are part of user
		t.Errorf("busy for %s, want %s", machine, want)
	}
	if got := othersBusy(machine, 600*time.Millisecond, time.Second); math.Abs(got-1) > 1e-9 {
		t.Errorf("others kept %.2f processors busy, want 1", got)
	}
	if got := othersBusy(machine, 2*machine, time.Second); got != 0 {
		t.Errorf("others kept %.2f processors busy, want 0", got)
	}
	if othersBusy(machine, 0, 0) != 0 || busyTime("") != 0 || busyTime("cpu x") != 0 {
		t.Error("a figure from no time, or from a malformed file")
	}
	if runtime.GOOS != "linux" {
		return
	}
	watch := watchOthers()
	burn := exec.CommandContext(t.Context(), "sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
	if err := burn.Run(); err != nil {
		t.Fatal(err)
	}
	now := watchOthers()
	used := burn.ProcessState.UserTime() + burn.ProcessState.SystemTime()
	if own := now.own - watch.own; own < used {
		t.Errorf("this process and its children used %s, the child alone %s", own, used)
	}
	elapsed := now.at.Sub(watch.at) + 2*tick
	if busy := now.machine - watch.machine; busy < used-2*tick || busy > time.Duration(runtime.NumCPU()+1)*elapsed {
		t.Errorf("the machine was busy for %s in %s on %d processors, and a child used %s",
			busy, elapsed, runtime.NumCPU(), used)
	}
}

// TestCircumstances_GivenServers_OnlyBefore checks that the line has no figure for the time of the measurements when it
// is unknown, as on servers that were given.
func TestCircumstances_GivenServers_OnlyBefore(t *testing.T) {
	t.Parallel()
	r := &Report{OthersBefore: 2, Skipped: []string{"scale: it needs root"}, Machine: Machine{Load: 1.5}}
	const before, after = "Other programs kept 2.0 processors busy before",
		" the measurements; the load average before was 1.5; not measured: scale: it needs root"
	if line := r.Circumstances(); line != before+after {
		t.Error(line)
	}
	r.OwnServers = true
	if line := r.Circumstances(); line != before+" and 0.0 during"+after {
		t.Error(line)
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
