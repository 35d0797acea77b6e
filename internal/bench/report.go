package bench

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report has the figures of a run.
type Report struct {
	At       time.Time `json:"at"`
	Command  string    `json:"command"`
	Size     string    `json:"size"` // whole, quick
	Machine  Machine   `json:"machine"`
	Versions struct {
		Holdfast string `json:"holdfast"` // the revision of the source
		Redis    string `json:"redis"`
		Postgres string `json:"postgres"`
		NATS     string `json:"nats"`
	} `json:"versions"`
	OwnServers bool `json:"own_servers"` // temporary servers, which never sync
	// Processors that other programs kept busy, on average, before the run and while it measured; 0 if unknown.
	OthersBefore float64      `json:"others_busy_before"`
	Others       float64      `json:"others_busy"`
	Skipped      []string     `json:"skipped,omitempty"` // parts that this machine cannot measure, with the reason
	Throughputs  []Throughput `json:"sales,omitempty"`
	Batches      []Batch      `json:"batches,omitempty"`
	Latencies    []Latency    `json:"latencies,omitempty"`
	Peers        []Peer       `json:"peers,omitempty"`
	Payments     *Compared    `json:"payments,omitempty"`
	Expiries     []Expiry     `json:"expiries,omitempty"`
	Overloads    []Overload   `json:"overloads,omitempty"`
	ScaleOuts    []ScaleOut   `json:"scale,omitempty"`
	Consoles     *Consoles    `json:"console,omitempty"`
	Idle         *Idle        `json:"idle,omitempty"`
	Scaling      []Scaling    `json:"growth,omitempty"`
	Goals        []Goal       `json:"goals"`
}

// Environment returns a line with the machine and the versions.
func (r *Report) Environment() string {
	servers := "servers that were given"
	if r.OwnServers {
		servers = "servers of its own, which keep nothing and never sync"
	}
	return fmt.Sprintf("%d processors (%s, %s); Redis %s, Postgres %s, NATS %s, %s; %s",
		r.Machine.Processors, r.Machine.Processor, r.Machine.System,
		r.Versions.Redis, r.Versions.Postgres, r.Versions.NATS, r.Machine.Go, servers)
}

// Circumstances returns a line about the other load of the machine.
func (r *Report) Circumstances() string {
	line := fmt.Sprintf("Other programs kept %.1f processors busy before", r.OthersBefore)
	if r.OwnServers { // else their CPU time is unknown
		line += fmt.Sprintf(" and %.1f during", r.Others)
	}
	line += fmt.Sprintf(" the measurements; the load average before was %.1f", r.Machine.Load)
	for _, skipped := range r.Skipped {
		line += "; not measured: " + skipped
	}
	return line
}

// Machine describes the machine of a run.
type Machine struct {
	System      string  `json:"system"`
	Processor   string  `json:"processor"`
	Processors  int     `json:"processors"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	Load        float64 `json:"load_average"` // threads that ran or waited in the minute before the run
	Go          string  `json:"go"`
}

func machine() Machine {
	m := Machine{
		System: runtime.GOOS + "/" + runtime.GOARCH, Processor: "unknown", Processors: runtime.NumCPU(),
		Go: runtime.Version(),
	}
	if model := procLine("/proc/cpuinfo", "model name"); model != "" {
		m.Processor = model
	}
	m.MemoryBytes = procKilobytes("/proc/meminfo", "MemTotal")
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		minute, _, _ := strings.Cut(string(text), " ")
		m.Load, _ = strconv.ParseFloat(minute, 64) // 0 on an error
	}
	return m
}

// procLine returns the text of a line "name: text" of a file. It returns "" without such a line, for
// example on systems other than Linux.
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

// procKilobytes returns the number of a line "name: number kB" in bytes, 0 without such a line.
func procKilobytes(path, name string) int64 {
	number, _, _ := strings.Cut(procLine(path, name), " ")
	kilobytes, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0
	}
	return kilobytes << 10
}

// Rate is the rate of a number of events.
type Rate struct {
	Number    int                `json:"number"`
	Seconds   float64            `json:"seconds"`
	PerSecond float64            `json:"per_second"`
	Processor map[string]float64 `json:"processor_us_each,omitempty"` // CPU time per event, by process
}

// newRate returns an error when took is not positive, for example because the clock was set back.
func newRate(number int, took time.Duration, used processorTimes) (Rate, error) {
	if took <= 0 {
		return Rate{}, fmt.Errorf("%d events took %s: the clock may have been set", number, took)
	}
	return Rate{
		Number: number, Seconds: took.Seconds(), PerSecond: float64(number) / took.Seconds(), Processor: used.each(number),
	}, nil
}

func perSecond(r Rate) float64 { return r.PerSecond }

// medianRate returns the median of f over the rounds.
func medianRate(rounds []Rate, f func(Rate) float64) float64 {
	return median(len(rounds), func(i int) float64 { return f(rounds[i]) })
}

// quotient returns the median, over the rounds, of the rate of a round divided by the other rate of the
// same round.
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

// medianMicros returns the median, over the rounds, of the CPU time per event, by process.
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

// Compared has the rates of Holdfast and of a ceiling, measured in rounds. A round measures one Rate of each
// list, one right after the other.
type Compared struct {
	Ceiling  []Rate `json:"ceiling"`
	Holdfast []Rate `json:"holdfast"`

	// Medians of the rounds.
	PerSecond       float64            `json:"per_second"`
	CeilingSecond   float64            `json:"ceiling_per_second"`
	OfCeiling       float64            `json:"of_ceiling"`
	ProcessorMicros map[string]float64 `json:"processor_us_each,omitempty"`
	CeilingMicros   map[string]float64 `json:"ceiling_processor_us_each,omitempty"`
}

// sum sets the medians.
func (c *Compared) sum() {
	c.PerSecond, c.CeilingSecond = medianRate(c.Holdfast, perSecond), medianRate(c.Ceiling, perSecond)
	c.OfCeiling = quotient(c.Holdfast, c.Ceiling)
	c.ProcessorMicros, c.CeilingMicros = medianMicros(c.Holdfast), medianMicros(c.Ceiling)
}

// Throughput has the figures of a sale. A round also measures the other sales with the same number of nights.
type Throughput struct {
	Nights    int    `json:"nights"`
	Resources int    `json:"resources"`
	Spread    string `json:"spread,omitempty"` // "": at random; alone: none is shared; zipf
	Workers   int    `json:"workers"`
	Compared

	// Medians of the rounds.
	TimesMany   float64 `json:"times_1000_resources"`         // with one worker and the same number of nights
	CeilingBusy float64 `json:"ceiling_redis_busy,omitempty"` // share of the time in which Redis was busy
}

func (s *Throughput) load() load { return load{s.Resources, s.Spread} }

// sum sets the medians. many is the sale of 1,000 resources by one worker.
func (s *Throughput) sum(many *Throughput) {
	s.Compared.sum()
	s.TimesMany = quotient(s.Holdfast, many.Holdfast)
	s.CeilingBusy = medianRate(s.Ceiling, func(r Rate) float64 { return r.Processor[processRedis] * r.PerSecond / 1e6 })
}

// SumMicros returns the CPU time per event of all processes but the load generator.
func SumMicros(micros map[string]float64) (sum float64) {
	for name, used := range micros {
		if name != processBench {
			sum += used
		}
	}
	return sum
}

// Batch has the figures of requests that arrive together, for as many resources.
type Batch struct {
	Size int  `json:"size"`
	Rate Rate `json:"rate"` // its CPU time includes that of waiting: with few requests a second it is much of it
}

// Peer has the figures of a way of placing holds, with the best number of requests at once.
type Peer struct {
	Name      string `json:"name"`
	Nights    int    `json:"nights"`
	Resources int    `json:"resources"`
	InFlight  int    `json:"in_flight"`
	Rate      Rate   `json:"rate"`
	Quantiles
	Quarter *Latency `json:"quarter,omitempty"` // at a quarter of the rate; of Holdfast only
	Promises
}

// Overload has the figures of workers whose server is throttled.
type Overload struct {
	Server      string  `json:"server"`
	Workers     int     `json:"workers"`
	Seconds     float64 `json:"seconds"`
	PerSecond   float64 `json:"per_second"`
	Normal      float64 `json:"normal_per_second"`
	Attempts    float64 `json:"attempts_per_event"`
	BackSeconds float64 `json:"normal_again_after_seconds"` // after the throttle ended
}

// ScaleOut has the figures of some workers with as many shards of Redis, each with a tenth of a processor.
type ScaleOut struct {
	Workers  int     `json:"workers"` // and shards
	Rates    []Rate  `json:"rounds"`
	Attempts float64 `json:"attempts_per_event"` // the most of the rounds, until all requests were decided
	Others   float64 `json:"others_busy"`        // processors that other programs kept busy, the most of the rounds

	// Medians of the rounds.
	PerSecond       float64            `json:"per_second"`
	TimesOne        float64            `json:"times_one"`
	ProcessorMicros map[string]float64 `json:"processor_us_each"` // over all workers, all shards, NATS and Postgres
	MicrosTimesOne  float64            `json:"processor_times_one"`
}

// sum sets the medians. one has the same number of rounds with one worker.
func (s *ScaleOut) sum(one *ScaleOut) {
	s.PerSecond, s.TimesOne = medianRate(s.Rates, perSecond), quotient(s.Rates, one.Rates)
	s.ProcessorMicros = medianMicros(s.Rates)
	s.MicrosTimesOne = median(len(s.Rates), func(i int) float64 {
		return SumMicros(s.Rates[i].Processor) / SumMicros(one.Rates[i].Processor)
	})
}

// Consoles has the figures of a worker without live pages of its console, and with some, measured in pairs.
type Consoles struct {
	Pages   int    `json:"live_pages"`
	Without []Rate `json:"without"`
	With    []Rate `json:"with"`

	// Medians of the pairs.
	PerSecond    float64            `json:"per_second"`
	WithSecond   float64            `json:"with_per_second"`
	TimesWithout float64            `json:"times_without"`
	Micros       map[string]float64 `json:"processor_us_each,omitempty"`
	WithMicros   map[string]float64 `json:"with_processor_us_each,omitempty"`
	MicrosTimes  float64            `json:"processor_times_without"` // CPU time of a hold; 0 if it is unknown
}

// sum sets the medians.
func (c *Consoles) sum() {
	c.PerSecond, c.WithSecond = medianRate(c.Without, perSecond), medianRate(c.With, perSecond)
	c.TimesWithout = quotient(c.With, c.Without)
	c.Micros, c.WithMicros = medianMicros(c.Without), medianMicros(c.With)
	if c.Micros != nil {
		c.MicrosTimes = median(len(c.With), func(i int) float64 {
			return SumMicros(c.With[i].Processor) / SumMicros(c.Without[i].Processor)
		})
	}
}

// Idle is the CPU time of a worker without work and of its servers.
type Idle struct {
	Rows    int                `json:"inventory_rows"`
	Seconds float64            `json:"seconds"`
	Percent map[string]float64 `json:"percent_of_a_processor"`
	Sum     float64            `json:"sum_percent"`
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

// Latency is the time from when a request was due until its outcome arrived.
type Latency struct {
	Strategy  string  `json:"lock_strategy"`
	Percent   int     `json:"percent"` // of Full; 0: a fixed rate
	Full      float64 `json:"full_per_second"`
	PerSecond float64 `json:"per_second"`
	Number    int     `json:"number"` // of requests, without the first ones, which warm up
	Quantiles
	Sent            Quantiles          `json:"published_late"` // the publisher's part: from due until published
	ProcessorMicros map[string]float64 `json:"processor_us_each,omitempty"`
}

// Expiry is how late expired holds were restored.
type Expiry struct {
	Notified      bool      `json:"notified"`               // the worker listens to keyspace notifications
	RedisNotifies string    `json:"notify_keyspace_events"` // of Redis
	Number        int       `json:"number"`
	Keys          int       `json:"other_keys"`
	Within        float64   `json:"within_seconds"` // from the first deadline to the last
	Late          Quantiles `json:"late"`
}

// Scaling is the cost of one more hold at a number of live holds.
type Scaling struct {
	Live         int                `json:"live"`
	Rate         Rate               `json:"rate"` // of placing more holds
	RedisBytes   float64            `json:"redis_bytes_each"`
	RedisTotal   int64              `json:"redis_bytes"`
	WireIn       float64            `json:"redis_received_bytes_each"`
	WireOut      float64            `json:"redis_sent_bytes_each"`
	Parts        map[string]float64 `json:"redis_bytes_each_by_kind"`
	EventBytes   float64            `json:"event_bytes_each"` // stored, with subject and headers
	OutcomeBytes float64            `json:"outcome_bytes_each"`
	WorkerBytes  int64              `json:"worker_resident_bytes,omitempty"`
	WorkerEmpty  int64              `json:"worker_resident_bytes_at_start,omitempty"`
}

// KindsLine returns the bytes of a hold by kind of key, the largest first.
func (g Scaling) KindsLine() string {
	kinds := slices.SortedFunc(maps.Keys(g.Parts), func(a, b string) int { return cmp.Compare(g.Parts[b], g.Parts[a]) })
	texts := make([]string, 0, len(kinds))
	for _, kind := range kinds {
		if g.Parts[kind] >= 0.5 {
			texts = append(texts, fmt.Sprintf("%s %.0f", kind, g.Parts[kind]))
		}
	}
	return strings.Join(texts, ", ")
}
