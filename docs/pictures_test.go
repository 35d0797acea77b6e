package docs_test

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"image/color"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

var (
	pictures    = flag.Bool("pictures", false, "write dashboard.png and the capture of worker top in operating.md")
	picturesFor = flag.Duration("pictures.for", 4*time.Minute, "how long the load for the pictures lasts")
)

const (
	pictureRate   = 150.0 // requests for holds per second
	pictureWindow = "15s" // in place of $__rate_interval
	topBegin      = "<!-- top: made by make pictures -->\n"
	topEnd        = "<!-- top: end -->\n"
)

// TestPictures_LoadOnRealServers_AreDrawn puts a load on worker dev, with a pause and a loss of Redis' data, has
// Prometheus scrape it, and draws the answers to the queries of the dashboard.
func TestPictures_LoadOnRealServers_AreDrawn(t *testing.T) {
	if !*pictures {
		t.Skip("it takes minutes and writes documents: make pictures runs it")
	}
	prometheus := startPrometheus(t, dev.httpAddr)
	began := time.Now()
	load := startPictureLoad(t)
	third := time.After(*picturesFor / 3)
	half := time.After(*picturesFor / 2)
	end := time.After(*picturesFor)
	for done := false; !done; {
		select {
		case <-third:
			runWorker(t, "pause", "--for", "10s", "--reason", "Postgres switchover", "--who", "ann@ops")
		case <-half:
			picture := ""
			stacktest.Eventually(t, "rates, which the second answer of a worker has", func() bool {
				picture = runWorker(t, "top", "--once")
				return strings.Contains(picture, "events/s") && !strings.Contains(picture, "over 0 s")
			})
			writeTop(t, picture)
			loseRedis(t)
		case <-end:
			done = true
		}
	}
	load()
	d := readDashboard(t)
	for i := range d.Panels {
		d.Panels[i].query(t, prometheus, began, time.Now())
	}
	d.draw(t, "dashboard.png")
}

// runWorker runs a command of the worker beside worker dev.
func runWorker(t *testing.T, args ...string) string {
	t.Helper()
	c := dev.command(t, dev.dir, binary, args...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("worker %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// writeTop replaces the capture of worker top in operating.md.
func writeTop(t *testing.T, picture string) {
	t.Helper()
	page, err := os.ReadFile("operating.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), topBegin)
	_, after, ends := strings.Cut(rest, topEnd)
	if !found || !ends {
		t.Fatalf("operating.md has no place for the capture between %s and %s", topBegin, topEnd)
	}
	text := before + topBegin + "```text\n" + strings.TrimRight(picture, "\n") + "\n```\n" + topEnd + after
	if err := os.WriteFile("operating.md", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// loseRedis removes all data of Redis, which a worker rebuilds.
func loseRedis(t *testing.T) {
	t.Helper()
	found, err := endpoints.Read(filepath.Join(dev.dir, ".holdfast", "endpoints.env"))
	if err != nil {
		t.Fatal(err)
	}
	options, err := redis.ParseURL(found["HOLDFAST_REDIS_URL"])
	if err != nil {
		t.Fatal(err)
	}
	r := redis.NewClient(options)
	defer func() { _ = r.Close() }()
	if err := r.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// startPrometheus starts Prometheus, which scrapes a worker every second, and returns its address.
func startPrometheus(t *testing.T, worker string) (addr string) {
	t.Helper()
	stacktest.NeedTool(t, "prometheus")
	ports := stacktest.QuietPorts(t, 1)
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	text := "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: holdfast\n    static_configs: [{targets: ['" +
		worker + "']}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addr = "127.0.0.1:" + strconv.Itoa(ports[0])
	running, err := stacktest.StartProgram(exec.Command("prometheus", "--config.file", config,
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Kill)
	if _, err := running.AwaitLine("Server is ready to receive web requests"); err != nil {
		t.Fatal(err)
	}
	return addr
}

// startPictureLoad publishes events of all kinds until the returned function is called.
func startPictureLoad(t *testing.T) (stop func()) {
	t.Helper()
	nc, err := nats.Connect(dev.natsURL)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(nc, "holdfast")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := pictureLoad{t, cl, rate.NewLimiter(pictureRate, 8)}
	for _, resource := range pictureResources {
		l.request(ctx, events.InventorySet, resource, map[string]any{"resource_id": resource, "check_in": l.date(0),
			"check_out": l.date(60), "capacity": 120})
	}
	var running sync.WaitGroup
	for range 600 { // enough to go on while consumers are paused
		running.Go(func() {
			for l.limiter.Wait(ctx) == nil {
				l.customer(ctx)
			}
		})
	}
	return func() { cancel(); running.Wait(); nc.Close() }
}

var pictureResources = []string{"deluxe", "double", "family", "loft", "single", "suite"}

// pictureLoad is the load for the pictures.
type pictureLoad struct {
	t       *testing.T
	client  *client.Client
	limiter *rate.Limiter
}

func (*pictureLoad) date(days int) string {
	return time.Now().UTC().AddDate(0, 0, 7+days).Format(holds.DateFormat)
}

// customer requests a hold, and pays, cancels, extends or forgets it.
func (l *pictureLoad) customer(ctx context.Context) {
	resource := pictureResources[min(rand.N(len(pictureResources)), rand.N(len(pictureResources)))]
	first := min(rand.N(60), rand.N(60))
	quantity := any(1 + rand.N(3))
	if rand.N(2000) == 0 {
		quantity = "2" // a mistake
	}
	o := l.request(ctx, events.BookingRequested, resource, map[string]any{
		"request_key": strconv.Itoa(rand.Int()), "user_id": "u" + strconv.Itoa(rand.N(1_000_000)), "resource_id": resource,
		"check_in": l.date(first), "check_out": l.date(min(60, first+1+rand.N(4))), "quantity": quantity,
		"ttl_seconds": 5 + rand.N(40),
	})
	if o == nil || o.Type != events.Type(holds.EventHoldCreated) {
		return
	}
	id := map[string]any{"hold_id": o.Subject}
	switch rand.N(8) {
	case 0, 1:
		l.request(ctx, events.PaymentStarted, resource, id)
		l.request(ctx, events.PaymentConfirmed, resource, map[string]any{"hold_id": o.Subject, "payment_id": "p" + o.ID})
	case 2:
		l.request(ctx, events.BookingCancelled, resource, id)
	case 3:
		l.request(ctx, events.BookingExtended, resource, map[string]any{"hold_id": o.Subject, "ttl_seconds": 60})
	case 4:
		if answer, err := http.Get("http://" + dev.httpAddr + "/v1/holds/" + o.Subject); err == nil {
			_ = answer.Body.Close() // only the request matters
		}
	}
}

// request publishes an event and returns its outcome, nil if it has none.
func (l *pictureLoad) request(ctx context.Context, event, resource string, data any) *events.Envelope {
	m, _, err := client.NewEvent("holdfast", event, resource, "/pictures", data)
	if err != nil {
		l.t.Error(err)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	reply, err := l.client.Request(ctx, m)
	if err != nil || reply.DeadLetter != nil {
		return nil
	}
	return &reply.Envelope
}

// dashboard is what a picture needs of deployments/grafana/holdfast.json.
type dashboard struct {
	Title  string  `json:"title"`
	Panels []panel `json:"panels"`
}

type panel struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct{ X, Y, W, H int }
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`

	lines []line
}

// line is one series of a panel.
type line struct {
	name   string
	points plotter.XYs // seconds since the begin of the load
}

// most returns the largest absolute value of a line.
func (l *line) most() (most float64) {
	for _, point := range l.points {
		most = max(most, math.Abs(point.Y))
	}
	return most
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(stacktest.Deployment("grafana", "holdfast.json"))
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil || len(d.Panels) == 0 {
		t.Fatalf("%d panels: %v", len(d.Panels), err)
	}
	return d
}

// query reads the lines of a panel from Prometheus.
func (p *panel) query(t *testing.T, prometheus string, from, to time.Time) {
	t.Helper()
	for _, target := range p.Targets {
		parameters := url.Values{
			"query": {strings.ReplaceAll(target.Expr, "$__rate_interval", pictureWindow)},
			"start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)}, "step": {"1"},
		}
		answer, err := http.Get("http://" + prometheus + "/api/v1/query_range?" + parameters.Encode())
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close() // only read
		var found struct {
			Data struct {
				Result []struct {
					Metric map[string]string    `json:"metric"`
					Values [][2]json.RawMessage `json:"values"`
				} `json:"result"`
			} `json:"data"`
		}
		if err == nil {
			err = json.Unmarshal(body, &found)
		}
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v\n%s", target.Expr, err, body)
		}
		for _, series := range found.Data.Result {
			l := line{name: target.LegendFormat}
			for label, value := range series.Metric {
				l.name = strings.ReplaceAll(l.name, "{{"+label+"}}", value)
			}
			for _, sample := range series.Values {
				at, _ := strconv.ParseFloat(string(sample[0]), 64)
				value, err := strconv.ParseFloat(strings.Trim(string(sample[1]), `"`), 64)
				if err == nil && !math.IsNaN(value) && !math.IsInf(value, 0) {
					l.points = append(l.points, plotter.XY{X: at - float64(from.Unix()), Y: value})
				}
			}
			if len(l.points) > 0 {
				p.lines = append(p.lines, l)
			}
		}
	}
	// The largest come first, and only those that are not always zero, unless all are.
	slices.SortStableFunc(p.lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(b.most(), a.most()), cmp.Compare(a.name, b.name))
	})
	if i := slices.IndexFunc(p.lines, func(l line) bool { return l.most() == 0 }); i > 0 {
		p.lines = p.lines[:i]
	}
}

// The sizes of the picture: Grafana's grid has 24 columns.
const (
	columnWidth = 1.2 * vg.Centimeter
	rowHeight   = 0.62 * vg.Centimeter
	gridColumns = 24
	legendMost  = 6 // lines of a legend
)

var lineColours = []color.Color{
	color.RGBA{0x0b, 0x4f, 0x8a, 0xff}, color.RGBA{0xe8, 0x9a, 0x3c, 0xff}, color.RGBA{0x1f, 0x7a, 0x3d, 0xff},
	color.RGBA{0xc0, 0x3a, 0x2b, 0xff}, color.RGBA{0x6b, 0x3f, 0xa0, 0xff}, color.RGBA{0x5a, 0xa9, 0xe0, 0xff},
	color.RGBA{0x80, 0x80, 0x80, 0xff}, color.RGBA{0x7c, 0xc4, 0x7f, 0xff},
}

var sans = font.Font{Typeface: "Liberation", Variant: "Sans"}

// draw writes all panels at their places.
func (d *dashboard) draw(t *testing.T, path string) {
	t.Helper()
	rows := 0
	for _, p := range d.Panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	canvas := vgimg.New(gridColumns*columnWidth, vg.Length(rows)*rowHeight)
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Path())
	for i, p := range d.Panels {
		left, bottom := vg.Length(p.GridPos.X)*columnWidth, vg.Length(rows-p.GridPos.Y-p.GridPos.H)*rowHeight
		area := draw.Canvas{Canvas: whole.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: left + 6, Y: bottom + 4},
			Max: vg.Point{X: left + vg.Length(p.GridPos.W)*columnWidth - 6, Y: bottom + vg.Length(p.GridPos.H)*rowHeight - 4},
		}}
		switch p.Type {
		case "row":
			write(area, 11, area.Min.Y+2, p.Title)
		case "stat":
			write(area, 9, area.Max.Y-12, p.Title)
			write(area, 20, area.Min.Y+6, d.Panels[i].last())
		default:
			d.Panels[i].draw(t, area)
		}
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(file); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// write writes a text at the left of an area.
func write(area draw.Canvas, size float64, y vg.Length, text string) {
	style := plot.New().Title.TextStyle
	style.Font = font.From(sans, vg.Length(size))
	style.XAlign, style.YAlign = draw.XLeft, draw.YBottom
	area.FillText(style, vg.Point{X: area.Min.X, Y: y}, text)
}

// last returns the last value of a panel with one line.
func (p *panel) last() string {
	if len(p.lines) == 0 {
		return "no data"
	}
	points := p.lines[0].points
	return p.format(points[len(points)-1].Y)
}

// format formats a value in the unit of the panel.
func (p *panel) format(value float64) string {
	number := func(v float64) string {
		if math.Abs(v) >= 1000 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	switch unit := p.FieldConfig.Defaults.Unit; {
	case unit == "percentunit":
		return number(100*value) + " %"
	case unit == "s" && math.Abs(value) < 1 && value != 0:
		return number(1000*value) + " ms"
	case unit == "s":
		return number(value) + " s"
	case unit == "bytes":
		return number(value/1e6) + " MB"
	case unit == "ops":
		return number(value) + "/s"
	default:
		return number(value)
	}
}

// draw draws the lines of a panel.
func (p *panel) draw(t *testing.T, area draw.Canvas) {
	t.Helper()
	one := plot.New()
	for _, text := range []*font.Font{&one.Title.TextStyle.Font, &one.X.Tick.Label.Font, &one.Y.Tick.Label.Font, &one.Legend.TextStyle.Font} {
		*text = font.From(sans, 7)
	}
	one.Title.Text, one.Title.TextStyle.Font.Size = p.Title, 9
	one.X.Tick.Marker = plot.TickerFunc(func(from, to float64) []plot.Tick {
		return labelled(from, to, func(v float64) string { return fmt.Sprintf("%d:%02d", int(v)/60, int(v)%60) })
	})
	one.Y.Tick.Marker = plot.TickerFunc(func(from, to float64) []plot.Tick { return labelled(from, to, p.format) })
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, color.Gray{0xdd}
	one.Add(grid)
	one.Legend.Top, one.Legend.ThumbnailWidth = true, 10
	for i, l := range p.lines {
		drawn, err := plotter.NewLine(l.points)
		if err != nil {
			t.Fatalf("%s: %v", p.Title, err)
		}
		drawn.Color = lineColours[i%len(lineColours)]
		one.Add(drawn)
		if i < legendMost {
			one.Legend.Add(l.name, drawn)
		}
	}
	one.X.Min, one.X.Max = 0, picturesFor.Seconds()
	one.Y.Min, one.Y.Max = min(0, one.Y.Min), max(one.Y.Max, one.Y.Min+1e-3)
	if len(p.lines) == 0 {
		one.Title.Text += " (no data)"
		one.Y.Min, one.Y.Max = 0, 1
	}
	one.Y.Max += 0.25 * (one.Y.Max - one.Y.Min) // room for the legend
	one.Draw(area)
}

// labelled returns ticks with texts.
func labelled(from, to float64, text func(float64) string) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(from, to)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = text(ticks[i].Value)
		}
	}
	return ticks
}
