package bench

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg" // the format of plots
)

// bars are the bars of one colour, one for each number of nights.
type bars struct {
	name      string // in the legend
	colour    color.Color
	resources int // selects the sales with so many resources and one worker
	figure    func(Throughput) float64
	label     func(Throughput) string // above a bar; nil means no labels
}

const (
	plotWidth  = 24 * vg.Centimeter
	plotHeight = 14 * vg.Centimeter
	barWidth   = vg.Length(24)
	labelSize  = vg.Length(8)
	headroom   = 1.35 // height of the axis by the highest bar; leaves room for the legend
)

// The text is laid out in sans. families replaces its name in the SVG by a list that also has fonts of
// the same width.
var (
	sans     = font.Font{Typeface: "Liberation", Variant: "Sans"}
	families = [2]string{"font-family:Liberation Sans;", "font-family:'Liberation Sans',Arial,Helvetica,sans-serif;"}
)

// Plot writes a bar chart of the sales by one worker, with their ceilings and baselines, to an SVG file.
func (r *Report) Plot(path string) error {
	holdfast := func(s Throughput) float64 { return s.PerSecond }
	ceiling := func(s Throughput) float64 { return s.CeilingSecond }
	baseline := func(s Throughput) float64 { return s.BaselineSecond }
	ofCeiling := func(s Throughput) string { return fmt.Sprintf("%.2f", s.OfCeiling) }
	p, err := barChart(r.Throughputs, []bars{
		{"Redis alone, with the minimal script", color.Gray{0xb0}, manyResources, ceiling, nil},
		{
			"Holdfast, 1 resource (on the bars: share of Redis alone)",
			color.RGBA{0x1b, 0x5e, 0x8c, 0xff}, 1, holdfast, ofCeiling,
		},
		{"Holdfast, 10 resources", color.RGBA{0x4a, 0x90, 0xc2, 0xff}, 10, holdfast, ofCeiling},
		{"Holdfast, 1,000 resources", color.RGBA{0x9c, 0xc8, 0xe6, 0xff}, manyResources, holdfast, ofCeiling},
		{
			"baseline: a lock, a read and a write for each night",
			color.RGBA{0xc0, 0x5a, 0x3c, 0xff}, manyResources, baseline, nil,
		},
	})
	if err != nil {
		return fmt.Errorf("draw plot: %w", err)
	}
	p.Title.Text = "Holds per second, one worker"
	svg, err := p.WriterTo(plotWidth, plotHeight, "svg")
	if err != nil {
		return fmt.Errorf("draw plot: %w", err)
	}
	var text bytes.Buffer
	if _, err := svg.WriteTo(&text); err != nil {
		return fmt.Errorf("draw plot: %w", err)
	}
	drawn := bytes.ReplaceAll(text.Bytes(), []byte(families[0]), []byte(families[1]))
	if err := os.WriteFile(path, drawn, 0o644); err != nil { //nolint:gosec // a document
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

// barChart returns a chart with a group of bars for each number of nights, one bar of each kind.
func barChart(throughputs []Throughput, kinds []bars) (*plot.Plot, error) {
	p := newPlot()
	var nights []int
	highest := 0.0
	for _, s := range throughputs {
		if len(nights) == 0 || nights[len(nights)-1] != s.Nights {
			nights = append(nights, s.Nights)
		}
		highest = max(highest, s.PerSecond, s.CeilingSecond)
	}
	for i, kind := range kinds {
		values := make(plotter.Values, len(nights))
		labels := plotter.XYLabels{XYs: make(plotter.XYs, len(nights)), Labels: make([]string, len(nights))}
		for at, n := range nights {
			for _, s := range throughputs {
				if s.Nights != n || s.Resources != kind.resources || s.Workers != 1 {
					continue
				}
				values[at] = kind.figure(s)
				labels.XYs[at] = plotter.XY{X: float64(at), Y: values[at]}
				if kind.label != nil {
					labels.Labels[at] = kind.label(s)
				}
			}
		}
		chart, err := plotter.NewBarChart(values, barWidth)
		if err != nil {
			return nil, err
		}
		chart.Color, chart.LineStyle.Width = kind.colour, 0
		chart.Offset = barWidth * vg.Length(2*i-len(kinds)+1) / 2
		on, err := plotter.NewLabels(labels)
		if err != nil {
			return nil, err
		}
		on.Offset = vg.Point{X: chart.Offset, Y: 2}
		for k := range on.TextStyle {
			on.TextStyle[k].Font = font.From(sans, labelSize)
			on.TextStyle[k].XAlign = draw.XCenter
		}
		p.Add(chart, on)
		p.Legend.Add(kind.name, chart)
	}
	names := make([]string, len(nights))
	for at, n := range nights {
		names[at] = strconv.Itoa(n)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(nights))-0.5
	p.Y.Min, p.Y.Max = 0, headroom*highest
	return p, nil
}

// newPlot returns an empty plot with a legend at the top and horizontal grid lines.
func newPlot() *plot.Plot {
	p := plot.New()
	for _, style := range []*font.Font{
		&p.Title.TextStyle.Font, &p.Legend.TextStyle.Font,
		&p.X.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font,
	} {
		style.Typeface, style.Variant = sans.Typeface, sans.Variant
	}
	p.Legend.TextStyle.Font.Size = 10
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs, p.Legend.Padding = 10, 2
	p.X.Label.Text = "nights in a request"
	p.Y.Tick.Marker = thousands{}
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	p.Add(grid)
	return p
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
