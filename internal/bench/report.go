package bench

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is what was measured.
type Report struct {
	At       time.Time `json:"at"`
	Command  string    `json:"command"`
	Size     string    `json:"size"` // whole, quick
	Machine  Machine   `json:"machine"`
	Versions struct {
		Holdfast string `json:"holdfast"` // the revision, "" when it is not known
		Redis    string `json:"redis"`
		Postgres string `json:"postgres"`
		NATS     string `json:"nats"`
	} `json:"versions"`
	OwnServers  bool         `json:"own_servers"` // started for it; they keep nothing and never sync
	Throughputs []Throughput `json:"sales,omitempty"`
	Payments    *Payments    `json:"payments,omitempty"`
	Latencies   []Latency    `json:"latencies,omitempty"`
	Expiries    []Expiry     `json:"expiries,omitempty"`
	Scaling     []Scaling    `json:"growth,omitempty"`
	Goals       []Goal       `json:"goals"`
}

// Environment is on what it was measured, in a line.
func (r *Report) Environment() string {
	servers := "servers that were given"
	if r.OwnServers {
		servers = "servers of its own, which keep nothing and never sync"
	}
	return fmt.Sprintf("%d processors (%s, %s); Redis %s, Postgres %s, NATS %s, %s; %s", r.Machine.Processors, r.Machine.Processor,
		r.Machine.System, r.Versions.Redis, r.Versions.Postgres, r.Versions.NATS, r.Machine.Go, servers)
}

// Machine is where it was measured.
type Machine struct {
	System      string  `json:"system"`
	Processor   string  `json:"processor"`
	Processors  int     `json:"processors"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	Load        float64 `json:"load"` // processors that were busy in the minute before
	Go          string  `json:"go"`
}

func machine() Machine {
	m := Machine{System: runtime.GOOS + "/" + runtime.GOARCH, Processor: "unknown", Processors: runtime.NumCPU(), Go: runtime.Version()}
	if model := procLine("/proc/cpuinfo", "model name"); model != "" {
		m.Processor = model
	}
	m.MemoryBytes = procKilobytes("/proc/meminfo", "MemTotal")
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		minute, _, _ := strings.Cut(string(text), " ")
		m.Load, _ = strconv.ParseFloat(minute, 64) // 0 when it is none
	}
	return m
}

// procLine is what a line "name: text" of a file says, "" where there is none, as there is on
// systems other than Linux.
func procLine(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if found, value, _ := strings.Cut(line, ":"); strings.TrimSpace(found) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// procKilobytes is what such a line says in kB, in bytes, 0 where there is none.
func procKilobytes(path, name string) int64 {
	number, _, _ := strings.Cut(procLine(path, name), " ")
	kilobytes, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0
	}
	return kilobytes << 10
}

// revision is that of this program's source, "" when it is not known.
func revision() (revision string) {
	info, known := debug.ReadBuildInfo()
	if !known {
		return ""
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value + revision
		case s.Key == "vcs.modified" && s.Value == "true":
			revision += " and changes"
		}
	}
	return revision
}

// Rate is how fast something was done.
type Rate struct {
	Number    int                `json:"number"`
	Seconds   float64            `json:"seconds"`
	PerSecond float64            `json:"per_second"`
	Processor map[string]float64 `json:"processor_us_each,omitempty"` // microseconds of each process, for each
}

// newRate returns an error when it took no time, as it does when a clock was set.
func newRate(number int, took time.Duration, used processorTimes) (Rate, error) {
	if took <= 0 {
		return Rate{}, fmt.Errorf("%d events took %s: was a clock set?", number, took)
	}
	return Rate{Number: number, Seconds: took.Seconds(), PerSecond: float64(number) / took.Seconds(), Processor: used.each(number)}, nil
}

func perSecond(r Rate) float64 { return r.PerSecond }

// medianRate is the median of f over rounds.
func medianRate(rounds []Rate, f func(Rate) float64) float64 {
	return median(len(rounds), func(i int) float64 { return f(rounds[i]) })
}

// quotient is the median of a round's rate divided by that of the same round of what it is compared with.
func quotient(of, by []Rate) float64 {
	return median(min(len(of), len(by)), func(i int) float64 { return of[i].PerSecond / by[i].PerSecond })
}

func median(n int, f func(i int) float64) float64 {
	if n == 0 {
		return 0
	}
	values := make([]float64, n)
	for i := range values {
		values[i] = f(i)
	}
	slices.Sort(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// medianMicros is the median, over rounds, of what each process used for each.
func medianMicros(rounds []Rate) map[string]float64 {
	if len(rounds) == 0 || rounds[0].Processor == nil {
		return nil
	}
	micros := make(map[string]float64)
	for name := range rounds[0].Processor {
		micros[name] = medianRate(rounds, func(r Rate) float64 { return r.Processor[name] })
	}
	return micros
}

// Throughput is a sale, measured in rounds: the n-th of each list right after the n-th of the others, and
// in turns with the other sales of as many nights.
type Throughput struct {
	Nights    int `json:"nights"`
	Resources int `json:"resources"`
	Workers   int `json:"workers"`

	Ceiling  []Rate `json:"ceiling"`
	Holdfast []Rate `json:"holdfast"`
	Baseline []Rate `json:"baseline,omitempty"`

	// The middle of the rounds.
	PerSecond       float64            `json:"per_second"`
	CeilingSecond   float64            `json:"ceiling_per_second"`
	OfCeiling       float64            `json:"of_ceiling"`
	BaselineSecond  float64            `json:"baseline_per_second,omitempty"`
	TimesBaseline   float64            `json:"times_baseline,omitempty"`
	TimesMany       float64            `json:"times_1000_resources"` // by one worker, of as many nights
	ProcessorMicros map[string]float64 `json:"processor_us_each,omitempty"`
	CeilingMicros   map[string]float64 `json:"ceiling_processor_us_each,omitempty"`
	CeilingBusy     float64            `json:"ceiling_redis_busy,omitempty"` // the share of the time in which Redis had work
}

// sum computes what the rounds say. many is the sale that this one is compared with.
func (s *Throughput) sum(many *Throughput) {
	s.PerSecond, s.CeilingSecond, s.BaselineSecond = medianRate(s.Holdfast, perSecond), medianRate(s.Ceiling, perSecond), medianRate(s.Baseline, perSecond)
	s.OfCeiling, s.TimesBaseline = quotient(s.Holdfast, s.Ceiling), quotient(s.Holdfast, s.Baseline)
	s.TimesMany = quotient(s.Holdfast, many.Holdfast)
	s.ProcessorMicros, s.CeilingMicros = medianMicros(s.Holdfast), medianMicros(s.Ceiling)
	s.CeilingBusy = medianRate(s.Ceiling, func(r Rate) float64 { return r.Processor[processRedis] * r.PerSecond / 1e6 })
}

// busyEnough is the share of time in which Redis must have had work for its rate to be what it can do.
const busyEnough = 0.8

func (s *Throughput) line() string {
	line := fmt.Sprintf("%s: %s/s, %.2f of the ceiling (%s/s)", scenario{s.Nights, s.Resources, s.Workers}, rounded(s.PerSecond), s.OfCeiling, rounded(s.CeilingSecond))
	if s.TimesBaseline > 0 {
		line += fmt.Sprintf(", %.1f times the baseline (%s/s)", s.TimesBaseline, rounded(s.BaselineSecond))
	}
	line += microsLine(s.ProcessorMicros)
	if s.CeilingMicros != nil && s.CeilingBusy < busyEnough {
		line += fmt.Sprintf("; the ceiling is too low: Redis was busy for %.0f %% of the time only", 100*s.CeilingBusy)
	}
	return line
}

// rounded is a number of things a second.
func rounded(perSecond float64) string { return grouped(int(perSecond + 0.5)) }

// microsLine tells what processes used for each.
func microsLine(micros map[string]float64) string {
	var texts []string
	for _, name := range Processes {
		if used, known := micros[name]; known {
			texts = append(texts, fmt.Sprintf("%s %.0f", name, used))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return "; µs of processor each: " + strings.Join(texts, ", ")
}

// Payments is payments, measured in rounds as a Sale is.
type Payments struct {
	Ceiling  []Rate `json:"ceiling"`
	Holdfast []Rate `json:"holdfast"`

	// The middle of the rounds.
	PerSecond       float64            `json:"per_second"`
	CeilingSecond   float64            `json:"ceiling_per_second"`
	OfCeiling       float64            `json:"of_ceiling"`
	ProcessorMicros map[string]float64 `json:"processor_us_each,omitempty"`
	CeilingMicros   map[string]float64 `json:"ceiling_processor_us_each,omitempty"`
}

func (p *Payments) sum() {
	p.PerSecond, p.CeilingSecond = medianRate(p.Holdfast, perSecond), medianRate(p.Ceiling, perSecond)
	p.OfCeiling = quotient(p.Holdfast, p.Ceiling)
	p.ProcessorMicros, p.CeilingMicros = medianMicros(p.Holdfast), medianMicros(p.Ceiling)
}

func (p *Payments) line() string {
	return fmt.Sprintf("%s/s, %.2f of the ceiling (%s/s)", rounded(p.PerSecond), p.OfCeiling, rounded(p.CeilingSecond)) + microsLine(p.ProcessorMicros)
}

// Quantiles are quantiles, in milliseconds.
type Quantiles struct {
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p99_9_ms"`
	Max  float64 `json:"max_ms"`
}

func newQuantiles(h *hdrhistogram.Histogram) Quantiles {
	at := func(quantile float64) float64 { return float64(h.ValueAtQuantile(quantile)) / 1000 }
	return Quantiles{at(50), at(99), at(99.9), float64(h.Max()) / 1000}
}

func (t Quantiles) String() string {
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, p99.9 %.1f ms, max %.1f ms", t.P50, t.P99, t.P999, t.Max)
}

// Latency is from the moment in which a request was due until its outcome is there.
type Latency struct {
	Percent   int     `json:"percent"` // of Full
	Full      float64 `json:"full_per_second"`
	PerSecond float64 `json:"per_second"`
	Number    int     `json:"number"` // of requests that count
	Quantiles
	Sent            Quantiles          `json:"published_late"` // what of it was because the publisher was late
	ProcessorMicros map[string]float64 `json:"processor_us_each,omitempty"`
}

// sentLate is from which share of p99 on it must be told that the publisher was late.
const sentLate = 0.25

func (l Latency) line() string {
	line := fmt.Sprintf("at %d %%, %s/s: %s", l.Percent, rounded(l.PerSecond), l.Quantiles) + microsLine(l.ProcessorMicros)
	if l.Sent.P99 > sentLate*l.P99 {
		line += fmt.Sprintf("; what asked was late itself: p99 %.1f ms", l.Sent.P99)
	}
	return line
}

// Expiry is how late lapsed holds were given back.
type Expiry struct {
	Notified      bool      `json:"notified"`               // the worker listens to keyspace notifications
	RedisNotifies string    `json:"notify_keyspace_events"` // of Redis
	Number        int       `json:"number"`
	Keys          int       `json:"other_keys"`
	Within        float64   `json:"within_seconds"` // from the first deadline to the last
	Late          Quantiles `json:"late"`
}

func (e Expiry) line() string {
	return fmt.Sprintf("notifications %s, lapsing within %.1f s: late by %s", onOff(e.Notified), e.Within, e.Late)
}

// Scaling is what a live hold costs when there are so many.
type Scaling struct {
	Live         int     `json:"live"`
	Rate         Rate    `json:"rate"` // at which more were placed then
	RedisBytes   float64 `json:"redis_bytes_each"`
	RedisTotal   int64   `json:"redis_bytes"`
	WireIn       float64 `json:"redis_received_bytes_each"`
	WireOut      float64 `json:"redis_sent_bytes_each"`
	EventBytes   float64 `json:"event_bytes_each"` // as stored, with subject and headers
	OutcomeBytes float64 `json:"outcome_bytes_each"`
	WorkerBytes  int64   `json:"worker_resident_bytes,omitempty"`
	WorkerEmpty  int64   `json:"worker_resident_bytes_at_start,omitempty"`
}

func (g Scaling) line() string {
	return fmt.Sprintf("%s: %s/s, each %.0f bytes in Redis, which received %.0f and sent %.0f for it; the worker has %d MiB",
		plural(g.Live, "live hold"), rounded(g.Rate.PerSecond), g.RedisBytes, g.WireIn, g.WireOut, g.WorkerBytes>>20) + microsLine(g.Rate.Processor)
}
