package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"holdfast/internal/locking"
	"holdfast/internal/queries"
	"holdfast/internal/terminal"
)

const (
	httpAddrDefault = "127.0.0.1:8080"
	requestWithin   = answerWithin + 2*time.Second // of one worker, which may need answerWithin
	metricsBytesMax = 4 << 20
	problemBytesMax = 4 << 10
)

// locksCommand is `worker locks`.
type locksCommand struct {
	HTTPAddr  []string `name:"http-addr" env:"HOLDFAST_HTTP_ADDR" placeholder:"ADDR" help:"Operations addresses of the workers; their statistics are added up. Default: from endpoints.env in --data-dir, else 127.0.0.1:8080."`
	Output    string   `short:"o" default:"table" enum:"table,json" help:"Output format: table or json."`
	Directory `embed:""`
}

func (*locksCommand) Help() string {
	return `It reads /metrics of running workers and prints, for each class of lock sizes, how long work under a
lock took, how long requests waited, how many locks were lost, and a recommended --lock-lease. Times
are estimates from histograms. Most requests are decided in one step: they hold no lock that could be
lost, and are not among the sections.

Examples:

  worker locks
  worker locks --http-addr 10.0.0.1:8080,10.0.0.2:8080 -o json`
}

// Run reads the metrics of the workers and prints the statistics.
func (l *locksCommand) Run(ctx context.Context, std streams) error {
	addrs, err := l.addrs()
	if err != nil {
		return err
	}
	var families []*dto.MetricFamily
	for _, addr := range addrs {
		some, err := readMetrics(ctx, addr)
		if err != nil {
			return err
		}
		families = append(families, some...)
	}
	classes, err := lockReport(families)
	if err != nil {
		return err
	}
	if l.Output == "json" {
		return printJSON(std.out, struct {
			Workers []string    `json:"workers"`
			Classes []lockClass `json:"classes"`
		}{addrs, classes})
	}
	fmt.Fprintf(std.out, "Locks of %s since the start, by number of slots:\n\n", strings.Join(addrs, ", "))
	if err := printLocks(std.out, classes); err != nil {
		return err
	}
	fmt.Fprint(std.out, "\n--lock-lease applies to all locks: use the longest lease above. With auto each class has its own.\n")
	return nil
}

// addrs returns the addresses of the workers.
func (l *locksCommand) addrs() ([]string, error) {
	given := l.HTTPAddr
	if len(given) == 0 {
		given = []string{""}
	}
	addrs := make([]string, len(given))
	for i, one := range given {
		addr, err := workerAddr(one, l.DataDir)
		if err != nil {
			return nil, err
		}
		if slices.Contains(addrs[:i], addr) {
			return nil, misused("--http-addr contains %s twice", addr)
		}
		addrs[i] = addr
	}
	return addrs, nil
}

// readMetrics returns the metrics of a worker.
func readMetrics(ctx context.Context, addr string) ([]*dto.MetricFamily, error) {
	url, body, err := requestWorker(ctx, requestWithin, addr, "/metrics", "", metricsBytesMax)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, notAWorker(url, err)
	}
	return slices.Collect(maps.Values(families)), nil
}

// requestWorker requests a path of a worker, with a token unless it is "", and returns at most so many bytes
// of the answer.
func requestWorker(
	ctx context.Context, within time.Duration, addr, path, token string, bytesMax int64,
) (url string, body []byte, err error) {
	url = "http://" + addr + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return url, nil, misused("--http-addr %s is not host:port", addr)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return url, nil, fmt.Errorf("no answer from worker: %w (start one with `worker dev` or `worker run`, or give --http-addr)",
			err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		if token != "" {
			return url, nil, fmt.Errorf("%s does not accept the token in --api-token-file: it is not that of this worker", url)
		}
		return url, nil, fmt.Errorf("%s needs a token: give --api-token-file", url)
	default:
		return url, nil, refusal(url, response)
	}
	if body, err = io.ReadAll(io.LimitReader(response.Body, bytesMax)); err != nil {
		return url, nil, notAWorker(url, err)
	}
	return url, body, nil
}

// refusal returns the error for an answer that is not the requested one. A worker says why.
func refusal(url string, response *http.Response) error {
	var problem queries.Problem
	err := json.UnmarshalRead(io.LimitReader(response.Body, problemBytesMax), &problem)
	switch {
	case err == nil && problem.Detail != "":
		return fmt.Errorf("%s: %s: %s", url, response.Status, terminal.Printable(problem.Detail))
	case response.StatusCode == http.StatusNotFound && strings.HasPrefix(response.Request.URL.Path, "/v1/"):
		return fmt.Errorf("%s: %s (does the worker serve /v1 on another address? Give its --api-addr)", url, response.Status)
	}
	return notAWorker(url, errors.New(response.Status))
}

func notAWorker(url string, err error) error {
	return fmt.Errorf("%s: %w (is it the --http-addr of a worker?)", url, err)
}

// lockClass has the statistics of the locks of one size class.
type lockClass struct {
	Slots        string  `json:"slots"`
	Sections     int     `json:"sections"`
	SectionP50   float64 `json:"section_p50_ms"`
	SectionP95   float64 `json:"section_p95_ms"`
	SectionP99   float64 `json:"section_p99_ms"`
	Waits        int     `json:"waits"`
	WaitP50      float64 `json:"wait_p50_ms"`
	WaitP99      float64 `json:"wait_p99_ms"`
	Lost         int     `json:"lost"`
	Conflicts    int     `json:"conflicts"`
	ConflictRate float64 `json:"conflict_rate"`     // conflicts / (sections + conflicts)
	Lease        int64   `json:"lease_ms,omitzero"` // recommended; 0 when there are fewer sections than LeaseNeeds
	LeaseNeeds   int     `json:"lease_sections_min"`
}

// lockReport returns the statistics of all size classes, including those without locks.
func lockReport(families []*dto.MetricFamily) ([]lockClass, error) {
	sections, err := lockDurations(families, locking.MetricSections)
	if err != nil {
		return nil, err
	}
	waits, err := lockDurations(families, locking.MetricWaits)
	if err != nil {
		return nil, err
	}
	lost, conflicts := lockCounts(families, locking.MetricLost), lockCounts(families, locking.MetricConflicts)
	classes := make([]lockClass, len(locking.SizeClasses))
	for i, slots := range locking.SizeClasses {
		section, wait := sections[slots], waits[slots]
		c := lockClass{
			Slots: slots, Sections: int(section.Total()), Waits: int(wait.Total()),
			SectionP50: millis(section.Quantile(0.5)), SectionP95: millis(section.Quantile(0.95)),
			SectionP99: millis(section.Quantile(0.99)),
			WaitP50:    millis(wait.Quantile(0.5)), WaitP99: millis(wait.Quantile(0.99)),
			Lost: int(lost[slots]), Conflicts: int(conflicts[slots]), LeaseNeeds: locking.MinSamples,
		}
		if all := conflicts[slots] + section.Total(); all > 0 {
			c.ConflictRate = math.Round(1e4*conflicts[slots]/all) / 1e4
		}
		if s, ok := locking.RecommendLease(slots, section); ok {
			c.Lease = s.Lease.Milliseconds()
		}
		classes[i] = c
	}
	return classes, nil
}

// printLocks prints a table for people.
func printLocks(to io.Writer, classes []lockClass) error {
	w := tabwriter.NewWriter(to, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "slots\tsections\tp50\tp95\tp99\twaits\twait p50\twait p99\tlost\tconflicts\t   recommended lease")
	for _, c := range classes {
		row := c.row()
		row[len(row)-1] = "   " + row[len(row)-1]
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// row returns the texts of a row of the table.
func (c *lockClass) row() []string {
	return []string{
		c.Slots, strconv.Itoa(c.Sections), span(c.SectionP50), span(c.SectionP95), span(c.SectionP99),
		strconv.Itoa(c.Waits), span(c.WaitP50), span(c.WaitP99),
		strconv.Itoa(c.Lost), c.conflicts(), c.lease(),
	}
}

func (c *lockClass) conflicts() string {
	if c.Conflicts == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%.1f %%)", c.Conflicts, 100*c.ConflictRate)
}

// lease returns the recommended lease and the measurement that it is based on.
func (c *lockClass) lease() string {
	if c.Lease == 0 {
		return fmt.Sprintf("not enough sections: %d of %d", c.Sections, c.LeaseNeeds)
	}
	return fmt.Sprintf("%v, from the p99 of %d sections", time.Duration(c.Lease)*time.Millisecond, c.Sections)
}

// span formats a time in milliseconds for people, "-" for none.
func span(ms float64) string {
	switch {
	case ms == 0:
		return "-"
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.1f s", ms/1000)
	}
}
