package bench

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg" // the format of plots
)

const (
	plotWidth   = 28 * vg.Centimeter
	plotHeight  = 13 * vg.Centimeter
	legendWidth = 9.2 * vg.Centimeter
)

// The text is laid out in sans. families replaces its name in the SVG by a list that also has fonts of
// the same width.
var (
	sans     = font.Font{Typeface: "Liberation", Variant: "Sans"}
	families = [2]string{"font-family:Liberation Sans;", "font-family:'Liberation Sans',Arial,Helvetica,sans-serif;"}
)

// style is how a way of placing holds is drawn, in all plots.
type style struct {
	name   string
	colour color.Color
	glyph  draw.GlyphDrawer
}

// styles are the lines of the plot of peers, in the order of the legend.
var styles = []style{
	{HoldfastDurable, color.RGBA{0x0b, 0x4f, 0x8a, 0xff}, draw.CircleGlyph{}},
	{HoldfastUnsynced, color.RGBA{0x5a, 0xa9, 0xe0, 0xff}, draw.CircleGlyph{}},
	{HoldfastGiven, color.RGBA{0x5a, 0xa9, 0xe0, 0xff}, draw.CircleGlyph{}}, // instead of the unsynced one
	{PeerPostgres, color.RGBA{0x1f, 0x7a, 0x3d, 0xff}, draw.BoxGlyph{}},
	{PeerPostgresAsync, color.RGBA{0x7c, 0xc4, 0x7f, 0xff}, draw.BoxGlyph{}},
	{PeerRedsync, color.RGBA{0xc0, 0x3a, 0x2b, 0xff}, draw.TriangleGlyph{}},
	{PeerRedislock, color.RGBA{0xe8, 0x9a, 0x3c, 0xff}, draw.TriangleGlyph{}},
	{PeerScript, color.RGBA{0x80, 0x80, 0x80, 0xff}, draw.PyramidGlyph{}},
}

// PlotHolds writes holds per second by number of nights, of Holdfast and its peers, to an SVG file: one
// panel for many resources, and one for a hot one.
func (r *Report) PlotHolds(path string) error {
	panels := make([]*plot.Plot, len(peerLoads))
	var legend *plot.Legend // the same for each panel
	from, to := math.Inf(1), 0.0
	for _, p := range r.Peers {
		from, to = min(from, p.Rate.PerSecond), max(to, p.Rate.PerSecond)
	}
	for i, what := range peerLoads {
		panels[i] = newPlot("nights in a request", "holds per second", from, to)
		panels[i].Title.Text = "on " + what.String()
		legend = newLegend()
		nights := r.peerNights()
		names := make([]string, len(nights))
		for at, n := range nights {
			names[at] = strconv.Itoa(n)
		}
		panels[i].NominalX(names...)
		panels[i].X.Min, panels[i].X.Max = -0.4, float64(len(nights))-0.6
		for _, as := range styles {
			var points plotter.XYs
			for _, p := range r.Peers {
				if p.Name == as.name && p.Resources == what.resources {
					points = append(points, plotter.XY{X: float64(slices.Index(nights, p.Nights)), Y: p.Rate.PerSecond})
				}
			}
			if err := as.draw(panels[i], points, nil, legend, as.name); err != nil {
				return err
			}
		}
	}
	return write(path, panels, legend)
}

// peerNights returns the numbers of nights of the comparison with peers.
func (r *Report) peerNights() (nights []int) {
	for _, p := range r.Peers {
		if !slices.Contains(nights, p.Nights) {
			nights = append(nights, p.Nights)
		}
	}
	slices.Sort(nights)
	return nights
}

// PlotLatency writes latency against load to an SVG file: of Holdfast in an open loop, with locks and
// without, and of its peers at the highest rate of a closed loop.
func (r *Report) PlotLatency(path string) error {
	from, to := math.Inf(1), 0.0
	for _, l := range r.Latencies {
		from, to = min(from, l.P50), max(to, l.P99)
	}
	for _, p := range r.Peers {
		if p.plotted() {
			from, to = min(from, p.P50), max(to, p.P99)
		}
	}
	p := newPlot("holds per second", "latency in ms", from, to)
	p.Title.Text = fmt.Sprintf("%s, %s", plural(usualNights, "night"), load{resources: manyResources})
	p.X.Tick.Marker = thousands{}
	p.X.Min = 0
	legend := newLegend()
	for _, as := range []style{
		{strategyRange, styles[1].colour, draw.CircleGlyph{}},
		{strategyNone, color.RGBA{0x6b, 0x3f, 0xa0, 0xff}, draw.CircleGlyph{}},
	} {
		for _, dashes := range [][]vg.Length{nil, {4, 3}} {
			var points plotter.XYs
			name := "Holdfast, locks " + as.name + ", p99"
			for _, l := range r.Latencies {
				if l.Strategy != as.name {
					continue
				}
				at := plotter.XY{X: l.PerSecond, Y: l.P99}
				if dashes != nil {
					at.Y, name = l.P50, "Holdfast, locks "+as.name+", p50"
				}
				points = append(points, at)
			}
			slices.SortFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) })
			if err := as.draw(p, points, dashes, legend, name); err != nil {
				return err
			}
		}
	}
	for _, as := range styles {
		for _, found := range r.Peers {
			if found.Name != as.name || !found.plotted() {
				continue
			}
			points := plotter.XYs{{X: found.Rate.PerSecond, Y: found.P50}, {X: found.Rate.PerSecond, Y: found.P99}}
			if err := as.draw(p, points, nil, legend, as.name); err != nil {
				return err
			}
		}
	}
	legend.Add("(vertical: p50 to p99 of a closed")
	legend.Add("loop at the highest rate)")
	p.X.Max *= 1.05
	return write(path, []*plot.Plot{p}, legend)
}

// plotted says whether a peer was measured as latency is: with the usual nights, over many resources.
func (p Peer) plotted() bool { return p.Nights == usualNights && p.Resources == manyResources }

// draw adds a line with points to a plot, and to the legend. Without points it adds nothing.
func (l style) draw(p *plot.Plot, points plotter.XYs, dashes []vg.Length, legend *plot.Legend, name string) error {
	if len(points) == 0 {
		return nil
	}
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("draw plot: %w", err)
	}
	line.Color, line.Width, line.Dashes = l.colour, 1.8, dashes
	marks.Color, marks.Shape, marks.Radius = l.colour, l.glyph, 3
	p.Add(line, marks)
	legend.Add(name, line, marks)
	return nil
}

// newPlot returns an empty plot with a logarithmic axis of figures, and its grid.
func newPlot(x, y string, from, to float64) *plot.Plot {
	p := plot.New()
	for _, text := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font,
	} {
		text.Typeface, text.Variant = sans.Typeface, sans.Variant
	}
	p.Title.Padding = 6
	p.X.Label.Text, p.Y.Label.Text = x, y+" (logarithmic)"
	p.X.Label.Padding, p.Y.Label.Padding = 4, 4
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
	p.Y.Min, p.Y.Max = from/1.3, to*1.3
	p.Y.AutoRescale = false
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, color.Gray{0xdd}
	p.Add(grid)
	return p
}

func newLegend() *plot.Legend {
	l := plot.NewLegend()
	l.TextStyle.Font = font.From(sans, 10)
	l.Top, l.Left, l.Padding, l.ThumbnailWidth = true, true, 4, 24
	return &l
}

// write draws panels side by side, and the legend at their right.
func write(path string, panels []*plot.Plot, legend *plot.Legend) error {
	canvas, err := draw.NewFormattedCanvas(plotWidth, plotHeight, "svg")
	if err != nil {
		return fmt.Errorf("draw plot: %w", err)
	}
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Path())
	const margin = 10
	width := (plotWidth - legendWidth) / vg.Length(len(panels))
	for i, p := range panels {
		left := width * vg.Length(i)
		p.Draw(draw.Crop(whole, left+margin, left+width-plotWidth-margin, margin, -margin))
	}
	legend.Draw(draw.Crop(whole, plotWidth-legendWidth, -margin, margin, -3*margin))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return fmt.Errorf("draw plot: %w", err)
	}
	drawn := bytes.ReplaceAll(text.Bytes(), []byte(families[0]), []byte(families[1]))
	if err := os.WriteFile(path, drawn, 0o644); err != nil { //nolint:gosec // a document
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

// thousands formats the numbers of an axis with commas between groups of thousands.
type thousands struct{}

// Ticks implements plot.Ticker.
func (thousands) Ticks(from, to float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(from, to)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = grouped(int(t.Value))
		}
	}
	return ticks
}

// decades marks 1, 2 and 5 of each power of ten on a logarithmic axis.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(from, to float64) (ticks []plot.Tick) {
	for power := math.Pow(10, math.Floor(math.Log10(from))); power <= to; power *= 10 {
		for _, times := range []float64{1, 2, 5} {
			value := power * times
			if value < from || value > to {
				continue
			}
			label := strconv.FormatFloat(value, 'g', 3, 64)
			if value >= 1000 {
				label = grouped(int(math.Round(value)))
			}
			ticks = append(ticks, plot.Tick{Value: value, Label: label})
		}
	}
	return ticks
}
