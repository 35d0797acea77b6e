package locking_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"holdfast/internal/stack/stacktest"
)

var (
	compareAll    = flag.Bool("compare", false, "TestCompare: measure all ways, and not only run each of them")
	compareFor    = flag.Duration("compare.for", time.Second, "TestCompare: how long to measure each cell")
	compareRounds = flag.Int("compare.rounds", 3, "TestCompare: rounds for each cell; the median counts")
	compareOut    = flag.String("compare.out", "", "TestCompare: the `file` whose table is replaced")
)

// compareLeast is the minimum ratio of the throughput of range to that of one lock after the other,
// at compareSlots slots.
const (
	compareLeast = 8
	compareSlots = 30
)

// compareKey identifies a cell of the comparison.
type compareKey struct {
	seller            string
	slots, contenders int
}

// compareCell is the result of one measurement.
type compareCell struct {
	perSecond float64
	p50, p99  time.Duration
	trips     float64 // for each sale
	oversold  int64
	noQuorum  int64
}

// TestCompare sells with each method while all contenders request the same slots. With -compare it
// measures the throughput; without, it makes a few sales.
func TestCompare(t *testing.T) {
	sizes, contenderCounts := []int{1, 7, compareSlots}, []int{1, 16, 200}
	begin := func() func(done int) bool {
		end := time.Now().Add(*compareFor)
		return func(int) bool { return time.Now().Before(end) }
	}
	if !*compareAll {
		*compareRounds = 1
		const handful = 5
		sizes, contenderCounts = []int{7}, []int{4}
		begin = func() func(int) bool { return func(done int) bool { return done < handful } }
	}
	rounds := make(map[compareKey][]compareCell)
	for range *compareRounds {
		for _, slots := range sizes {
			for _, contenders := range contenderCounts {
				for _, kind := range sellerKinds {
					t.Run(fmt.Sprintf("%s/%d slots/%d", kind.name, slots, contenders), func(t *testing.T) {
						c := compareOne(t, kind, slots, contenders, begin)
						if kind.correct && c.oversold != 0 {
							t.Errorf("oversold %d units", c.oversold)
						}
						key := compareKey{kind.name, slots, contenders}
						rounds[key] = append(rounds[key], c)
					})
				}
			}
		}
	}
	if !*compareAll {
		return
	}
	cells := make(map[compareKey]compareCell)
	for key, all := range rounds {
		slices.SortFunc(all, func(a, b compareCell) int { return cmp.Compare(a.perSecond, b.perSecond) })
		cells[key] = all[len(all)/2]
	}
	report := compareSetting(t)
	for _, slots := range sizes {
		report += "\n" + compareTable(cells, slots, contenderCounts)
	}
	ratios, least := compareRatios(cells, contenderCounts)
	report += "\n" + ratios
	fmt.Println(report)
	if least < compareLeast {
		t.Errorf("%s has %.1f times the throughput of %s at %d slots, want %d", sellerRange, least, sellerCareful,
			compareSlots, compareLeast)
	}
	if *compareOut != "" {
		compareWrite(t, *compareOut, report)
	}
}

// compareOne measures a cell. It finishes and counts every sale that has begun, and measures the
// time until the last one ends.
func compareOne(t *testing.T, kind sellerKind, slots, contenders int,
	begin func() (more func(done int) bool)) compareCell {
	t.Helper()
	const endless = 1 << 50
	m := newSaleHarness(t, slots, endless, contenders)
	open := kind.open(t, m)
	took := make([][]time.Duration, contenders)
	errs := make([]error, contenders)
	more := begin()
	var all sync.WaitGroup
	begun := time.Now()
	for i := range contenders {
		all.Go(func() { took[i], errs[i] = sellWhile(t.Context(), open(m.sale), more) })
	}
	all.Wait()
	elapsed := time.Since(begun)
	var c compareCell
	histogram := hdrhistogram.New(1, time.Hour.Microseconds(), 3)
	for i := range contenders {
		if errs[i] != nil {
			t.Error(errs[i])
		}
		for _, d := range took[i] {
			if err := histogram.RecordValue(max(d.Microseconds(), 1)); err != nil {
				t.Error(err)
			}
		}
	}
	sales := histogram.TotalCount()
	c.perSecond = float64(sales) / elapsed.Seconds()
	c.p50 = time.Duration(histogram.ValueAtQuantile(50)) * time.Microsecond
	c.p99 = time.Duration(histogram.ValueAtQuantile(99)) * time.Microsecond
	c.trips = float64(m.trips.Load()) / float64(sales)
	c.oversold = m.oversold(t, sales)
	c.noQuorum = m.noQuorum.Load()
	return c
}

// sellWhile makes one sale after another and returns their durations.
func sellWhile(ctx context.Context, w seller, more func(done int) bool) (took []time.Duration, err error) {
	for more(len(took)) {
		begun := time.Now()
		if _, err := w.sell(ctx); err != nil {
			return took, err
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

// compareTable returns a table with one row for each method and three columns for each number of
// contenders.
func compareTable(cells map[compareKey]compareCell, slots int, contenderCounts []int) string {
	var b strings.Builder
	noun := "slots"
	if slots == 1 {
		noun = "slot"
	}
	fmt.Fprintf(&b, "**%d %s**\n\n| method |", slots, noun)
	for _, n := range contenderCounts {
		fmt.Fprintf(&b, " %d: sales/s | p50 / p99 ms | trips |", n)
	}
	b.WriteString(" oversold |\n|---|" + strings.Repeat("--:|--:|--:|", len(contenderCounts)) + "--:|\n")
	noQuorum := int64(0)
	for _, kind := range sellerKinds {
		fmt.Fprintf(&b, "| %s |", kind.name)
		oversold := int64(0)
		for _, n := range contenderCounts {
			c := cells[compareKey{kind.name, slots, n}]
			fmt.Fprintf(&b, " %.0f | %s / %s | %.1f |", c.perSecond, compareMillis(c.p50), compareMillis(c.p99), c.trips)
			oversold += c.oversold
			noQuorum += c.noQuorum
		}
		fmt.Fprintf(&b, " %d |\n", oversold)
	}
	if noQuorum > 0 {
		fmt.Fprintf(&b, "\nRedlock's servers were too busy to answer %d attempts in time; they were retried.\n", noQuorum)
	}
	return b.String()
}

// compareMillis formats milliseconds with three significant digits.
func compareMillis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

// compareRatios returns the ratio of range to one lock after the other, at compareSlots slots.
func compareRatios(cells map[compareKey]compareCell, contenderCounts []int) (table string, least float64) {
	var b strings.Builder
	fmt.Fprintf(&b, "| contenders for %d slots | %s / %s |\n|--:|--:|\n", compareSlots, sellerRange, sellerCareful)
	least = math.Inf(1)
	for _, n := range contenderCounts {
		ratio := cells[compareKey{sellerRange, compareSlots, n}].perSecond / cells[compareKey{sellerCareful, compareSlots,
			n}].perSecond
		least = min(least, ratio)
		fmt.Fprintf(&b, "| %d | %.1f |\n", n, ratio)
	}
	return b.String(), least
}

// compareSetting describes the machine and the software of the measurement.
func compareSetting(t *testing.T) string {
	t.Helper()
	info, err := newSaleHarness(t, 1, 1, 1).client.InfoMap(t.Context(), "server").Result()
	stacktest.Must(t, err)
	return fmt.Sprintf("Measured by `make bench-locks`, the median of %d rounds of %s for each cell: "+
		"%d cores shared by clients and servers, Redis %s, %s.\n",
		*compareRounds, *compareFor, runtime.NumCPU(), info["Server"]["redis_version"], runtime.Version())
}

var compareMarks = regexp.MustCompile(`(?s)<!-- table -->.*<!-- /table -->`)

// compareWrite replaces the table between the marks in a file by a report.
func compareWrite(t *testing.T, file, report string) {
	t.Helper()
	text, err := os.ReadFile(file)
	stacktest.Must(t, err)
	if !compareMarks.Match(text) {
		t.Fatalf("%s has no line <!-- table --> with a line <!-- /table --> after it", file)
	}
	text = compareMarks.ReplaceAllLiteral(text, []byte("<!-- table -->\n"+report+"<!-- /table -->"))
	stacktest.Must(t, os.WriteFile(file, text, 0o644))
}
