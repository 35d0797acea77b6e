package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/go-json-experiment/json"
	dto "github.com/prometheus/client_model/go"

	"holdfast/internal/stack/endpoints"
	"holdfast/internal/terminal"
)

const (
	topEvery     = time.Second
	topWidth     = 80
	topHottest   = 5 // resources
	statsMax     = 1 << 20
	latenessName = "holdfast_expiry_lateness_seconds"
)

// topCommand is `worker top`.
type topCommand struct {
	statsAddress `embed:""`
	Once         bool `help:"Print one picture and exit. So it is without a terminal, and with TERM=dumb."`
	Directory    `embed:""`
}

// statsAddress are the settings of commands that read the state of a running worker.
type statsAddress struct {
	HTTPAddr  string `name:"http-addr" env:"HOLDFAST_HTTP_ADDR" placeholder:"ADDR" help:"Operations address of a worker. Default: from endpoints.env in --data-dir, else 127.0.0.1:8080."`
	APIAddr   string `name:"api-addr" env:"HOLDFAST_API_ADDR" placeholder:"ADDR" help:"Address of /v1, if the worker serves it on another one. Default: from endpoints.env, else the operations address."`
	TokenFile string `name:"api-token-file" env:"HOLDFAST_API_TOKEN_FILE" placeholder:"FILE" help:"File with the token for /v1, if the worker has one."`
}

// find returns the addresses of the worker: given, or from the endpoints file in dir.
func (c *statsAddress) find(dir string) (t top, err error) {
	if t.addr, err = workerAddr(c.HTTPAddr, dir); err != nil {
		return t, err
	}
	api := c.APIAddr
	if api == "" && c.HTTPAddr == "" { // else the file may be that of another worker
		found, _ := endpoints.ReadIn(dir) // workerAddr has just read it
		api = found["HOLDFAST_API_ADDR"]
	}
	if t.api = t.addr; api != "" {
		if t.api, err = reachable("--api-addr", api); err != nil {
			return t, err
		}
	}
	t.tokenFile = c.TokenFile
	_, err = t.token()
	return t, err
}

func (*topCommand) Help() string {
	return `It shows every second what a worker and its namespace do: events and outcomes per second, what waits and for
how long, live holds and the hottest resources, dead letters, expiry lateness and lock waits. The space
bar holds the picture still, q ends.

Examples:

  worker top
  worker top --http-addr 10.0.0.1:8080 --api-token-file /run/secrets/api-token
  worker top --once`
}

// Run shows the picture until q, or once.
func (c *topCommand) Run(ctx context.Context, std streams) error {
	t, err := c.find(c.DataDir)
	if err != nil {
		return err
	}
	first := t.read(ctx)
	if c.Once || !terminal.Is(std.out) || os.Getenv("TERM") == "dumb" {
		if first.err == nil {
			fmt.Fprint(std.out, t.picture(first))
		}
		return first.err
	}
	_, err = tea.NewProgram(&topModel{ctx: ctx, top: t, last: first}, tea.WithContext(ctx)).Run()
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
		return nil // the user has ended it
	}
	return err
}

// top reads what the picture shows.
type top struct{ addr, api, tokenFile string }

// topReading is what a worker has answered.
type topReading struct {
	at       time.Time // of an answer
	stats    workerStats
	families []*dto.MetricFamily
	err      error
}

func (t top) read(ctx context.Context) (r topReading) {
	at := time.Now()
	if r.stats, r.err = t.stats(ctx); r.err == nil {
		r.families, r.err = readMetrics(ctx, t.addr)
	}
	if r.err == nil {
		r.at = at
	}
	return r
}

// clock returns the time of the answer for people.
func (r *topReading) clock() string { return r.at.UTC().Format("15:04:05 UTC") }

// token returns the token for /v1 that the file has now, "" without a file.
func (t top) token() (string, error) {
	if t.tokenFile == "" {
		return "", nil
	}
	token, err := os.ReadFile(t.tokenFile)
	if err != nil {
		return "", misused("--api-token-file: %v", err)
	}
	return strings.TrimSpace(string(token)), nil
}

// stats requests /v1/stats.
func (t top) stats(ctx context.Context) (s workerStats, err error) {
	token, err := t.token()
	if err != nil {
		return s, err
	}
	url, body, err := requestWorker(ctx, requestWithin, t.api, "/v1/stats", token, statsMax)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return s, notAWorker(url, err)
	}
	return s, nil
}

// picture draws a reading, at most topWidth columns wide.
func (t top) picture(r topReading) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Holdfast  namespace %s  worker %s  %s\n", r.stats.Namespace, t.addr, r.clock())
	if r.stats.Ready {
		b.WriteString("ready\n")
	} else {
		fmt.Fprintf(&b, "NOT READY: %s\n", cmp.Or(terminal.Printable(strings.Join(r.stats.Reasons, ", ")), "unknown"))
	}
	for _, name := range []string{"lost_commits", "redis_eviction"} {
		if detail := r.stats.Details[name]; detail != "" {
			fmt.Fprintf(&b, "WARNING: %s\n", terminal.Printable(detail))
		}
	}
	if rates := r.stats.Rates; rates != nil {
		fmt.Fprintf(&b, "\n%s events/s in, %s outcomes/s out (over %.0f s)\n",
			thousands(int64(rates.Events+0.5)), thousands(int64(rates.Outcomes+0.5)), rates.OverSeconds)
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "consumer\twaiting\tin work\toldest\t")
	for _, c := range r.stats.Consumers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\n", c.Name, thousands(int64(c.Pending)), thousands(int64(c.AckPending)),
			span(1000*c.OldestAgeSeconds))
	}
	_ = w.Flush() // of a strings.Builder
	for _, c := range r.stats.Consumers {
		if c.Pause != nil {
			fmt.Fprintf(&b, "%s is %s\n", c.Name, terminal.Printable(c.Pause.String()))
		}
	}
	if live := r.stats.LiveHolds; live != nil {
		fmt.Fprintf(&b, "\n%s live holds", thousands(live.Total))
		separator := "; most: "
		for _, one := range live.Hottest[:min(topHottest, len(live.Hottest))] {
			fmt.Fprintf(&b, "%s%s %s", separator, one.ResourceID, thousands(one.LiveHolds))
			separator = ", "
		}
		b.WriteString("\n")
	}
	b.WriteString(terminal.Counted(int(r.stats.DeadLetters.Total), "dead letter"))
	separator := ": "
	for _, reason := range slices.Sorted(maps.Keys(r.stats.DeadLetters.ByReason)) {
		if n := r.stats.DeadLetters.ByReason[reason]; n > 0 {
			fmt.Fprintf(&b, "%s%s %s", separator, reason, thousands(int64(n)))
			separator = ", "
		}
	}
	b.WriteString("\n\n" + lateness(r.families) + "\n")
	classes, err := lockReport(r.families)
	if err == nil {
		fmt.Fprintln(&b, lockWaits(classes))
	}
	return narrow(b.String())
}

// lateness says how late holds expired, since this worker has started.
func lateness(families []*dto.MetricFamily) string {
	total, bound := lateness99(families)
	switch {
	case total == 0:
		return "no hold has expired yet"
	case !math.IsInf(bound, 1):
		return fmt.Sprintf("99 %% of %s expired holds were restored within %s", thousands(int64(total)), span(1000*bound))
	}
	return fmt.Sprintf("of %s expired holds more than 1 %% were restored too late", thousands(int64(total)))
}

// lockWaits says how long work has waited for locks, by the number of slots.
func lockWaits(classes []lockClass) string {
	text, lost := "", 0
	for _, c := range classes {
		lost += c.Lost
		if c.Waits > 0 {
			text += fmt.Sprintf("; %s slots: %s, p99 %s", c.Slots, thousands(int64(c.Waits)), span(c.WaitP99))
		}
	}
	return "lock waits" + cmp.Or(text, ": none") + fmt.Sprintf("; locks lost: %d", lost)
}

// narrow cuts lines at topWidth and escapes what a terminal would interpret.
func narrow(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(terminal.Shortened(terminal.Printable(strings.TrimRight(line, " \n")), topWidth) + "\n")
	}
	return b.String()
}

// thousands formats a number with commas.
func thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// topModel is the picture in a terminal.
type topModel struct {
	ctx  context.Context //nolint:containedctx // bubbletea has no other way to pass it
	top  top
	last topReading
	held bool
}

// topTick asks for the next reading.
type topTick struct{}

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return m.wait() }

func (*topModel) wait() tea.Cmd {
	return tea.Tick(topEvery, func(time.Time) tea.Msg { return topTick{} })
}

// Update implements tea.Model. While the picture is held still, nothing is read.
func (m *topModel) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch message := message.(type) {
	case topTick:
		if m.held {
			return m, m.wait()
		}
		return m, func() tea.Msg { return m.top.read(m.ctx) }
	case topReading:
		if !m.held {
			if message.err != nil { // keep the last picture
				message.at, message.stats, message.families = m.last.at, m.last.stats, m.last.families
			}
			m.last = message
		}
		return m, m.wait()
	case tea.KeyPressMsg:
		switch message.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		case "space":
			m.held = !m.held
		}
	}
	return m, nil
}

// View implements tea.Model.
func (m *topModel) View() tea.View {
	var text string
	if m.last.err != nil {
		text = narrow(m.last.err.Error())
	}
	if !m.last.at.IsZero() { // it has answered
		if m.last.err != nil {
			text += "OLD: the last answer is of " + m.last.clock() + "\n\n"
		}
		text += m.top.picture(m.last)
	}
	if m.held {
		text += "\nheld still: space continues, q ends\n"
	} else {
		text += "\nspace holds the picture still, q ends\n"
	}
	view := tea.NewView(text)
	view.AltScreen = true
	return view
}
