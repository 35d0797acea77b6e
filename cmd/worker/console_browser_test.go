package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

const (
	axeVersion    = "4.14.1"
	browserWithin = 4 * time.Minute
	installLine   = "apt-get install -y --no-install-recommends chromium"
)

// needBrowser skips the test unless HOLDFAST_TEST_BROWSER is 1. It then installs a missing Chromium as
// root; else it fails with the line that does.
func needBrowser(t *testing.T) { // before t.Parallel, because it may install
	t.Helper()
	if os.Getenv("HOLDFAST_TEST_BROWSER") != "1" {
		t.Skip("it needs Chromium: HOLDFAST_TEST_BROWSER=1 runs it")
	}
	if _, err := exec.LookPath("chromium"); err == nil {
		return
	}
	if os.Geteuid() != 0 {
		t.Fatalf("Chromium is missing:\n\n\tsudo %s", installLine)
	}
	words := strings.Fields(installLine)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", installLine, err, out)
	}
}

// newTab returns a context of a new browser.
func newTab(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1200, 900))
	ctx, stop := context.WithTimeout(context.Background(), browserWithin)
	t.Cleanup(stop)
	ctx, stopAllocator := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stopAllocator)
	ctx, stopTab := chromedp.NewContext(ctx)
	t.Cleanup(stopTab)
	return ctx
}

// do runs actions in a tab.
func do(t *testing.T, tab context.Context, what string, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(tab, actions...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// evaluated returns the value of an expression in a tab.
func evaluated[T any](t *testing.T, tab context.Context, expression string) T {
	t.Helper()
	value, err := chromedp.Run(tab, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", expression[:min(len(expression), 200)], err)
	}
	return value
}

// until waits until an expression is true in a tab.
func until(t *testing.T, tab context.Context, expression string) {
	t.Helper()
	stacktest.Eventually(t, expression, func() bool {
		is, err := chromedp.Run(tab, chromedp.Evaluate[bool](expression))
		return err == nil && is // it is an error while the page changes
	})
}

// axe returns the source of axe-core, from npm.
func axe(t *testing.T) string {
	t.Helper()
	pack := exec.Command("npm", "pack", "--silent", "axe-core@"+axeVersion)
	pack.Dir = t.TempDir()
	if out, err := pack.Output(); err != nil {
		t.Fatalf("npm pack: %v\n%s", err, out)
	}
	unpack := exec.Command("tar", "xzf", "axe-core-"+axeVersion+".tgz", "package/axe.min.js")
	unpack.Dir = pack.Dir
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	source, err := os.ReadFile(filepath.Join(pack.Dir, "package", "axe.min.js"))
	stacktest.Must(t, err)
	return string(source)
}

// checkAccessible runs axe-core on the page of a tab. No finding may be serious or critical.
func checkAccessible(t *testing.T, tab context.Context, screen, source string) {
	t.Helper()
	evaluated[int](t, tab, source+";0")
	found := evaluated[string](t, tab, `axe.run().then(r => JSON.stringify(
		r.violations.filter(v => v.impact === 'serious' || v.impact === 'critical').map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html)])))`)
	if found != "[]" {
		t.Errorf("%s: axe-core found %s", screen, found)
	}
}

// checkTimeAxis changes the time zone of a page with a chart. The chart is drawn again, with times of 24 hours.
func checkTimeAxis(t *testing.T, tab context.Context) {
	t.Helper()
	evaluated[int](t, tab, `window.drawn = []; const fill = CanvasRenderingContext2D.prototype.fillText;
		CanvasRenderingContext2D.prototype.fillText = function(text, ...where) { window.drawn.push(text); fill.call(this, text, ...where); };
		document.querySelector('[data-time=local]').click(), 0`)
	until(t, tab, `window.drawn.includes('10,000')`) // the other axis
	drawn := evaluated[string](t, tab, `document.querySelector('[data-time=utc]').click(), window.drawn.join(' ')`)
	if !regexp.MustCompile(`\b[0-2][0-9]:[0-5][05]\b`).MatchString(drawn) || regexp.MustCompile(`[ap]m|/`).MatchString(drawn) {
		t.Errorf("the axes of the chart have the labels %s", drawn)
	}
}

// media emulates a colour scheme; "" for the default.
func media(scheme string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, tab *chromedp.Target) (chromedp.Void, error) {
		feature := &emulation.MediaFeature{Name: "prefers-color-scheme", Value: scheme}
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{feature}})
		return chromedp.Void{}, err
	}
}

// scripts allows or forbids the scripts of pages.
func scripts(allowed bool) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, tab *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, tab, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !allowed})
		return chromedp.Void{}, err
	}
}

// saved writes a picture of the page of a tab to docs/console, with -update.
func saved(t *testing.T, tab context.Context, name string) {
	t.Helper()
	picture, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
	stacktest.Must(t, err)
	if !*update {
		return
	}
	stacktest.Must(t, os.WriteFile(filepath.Join("..", "..", "docs", "console", name+".png"), picture, 0o600))
}

// busyTown starts a worker with a console and the customers of worker dev --traffic, and waits until
// holds have expired.
func busyTown(t *testing.T, namespace string) (s *harness, base string) {
	t.Helper()
	shared := stacktest.Shared()
	s = attach(t, urls{shared.NATSURL, shared.RedisURL, shared.PostgresURL}, namespace)
	worker := s.startWorker("HOLDFAST_CONSOLE=act")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	c := Config{Connections: Connections{NATSServers: NATSServers{NATSURL: s.urls.nats}, Named: Named{s.namespace}}}
	go func() { ended <- runTraffic(ctx, c) }()
	t.Cleanup(func() {
		stop()
		stacktest.Must(t, <-ended)
	})
	consoleTown(s)
	s.await("holds that expire and are paid", func(outcomes []events.Envelope, _ []nats.Header) bool {
		return len(ofType(outcomes, holds.EventHoldExpired)) > 3 && len(ofType(outcomes, holds.EventHoldConfirmed)) > 20
	})
	return s, "http://" + worker.http
}

// TestConsoleBrowser_EveryScreen_WorksForEveryone opens every screen in Chromium on a busy town: content,
// light and dark, 400 px wide, without JavaScript, and by axe-core.
func TestConsoleBrowser_EveryScreen_WorksForEveryone(t *testing.T) {
	needBrowser(t)
	t.Parallel()
	source := axe(t)
	s, base := busyTown(t, defaultNamespace) // for the pictures
	tab := newTab(t)
	hold := s.ofType(holds.EventHoldConfirmed)[0].Subject
	screens := []struct{ name, path, want string }{
		{"overview", "/console/", "Ready."}, {"availability", "/console/availability", "harbour-suite"},
		{"resource", "/console/availability/concert-hall?slot=A-05", "Slot A-05"}, {"holds", "/console/holds", "Live holds"},
		{"hold", "/console/holds/" + url.PathEscape(hold), "row in reservations"}, {"dead-letters", "/console/dead-letters", "Groups"},
		{"dead-letter-list", "/console/dead-letters/list", "Replay selected"}, {"dead-letter", "/console/dead-letters/1?dry=run", "still malformed"},
		{"confirm", "/console/dead-letters/confirm?verb=replay", "Reason, recorded"}, {"runs", "/console/runs", "Every replay"},
		{"lateness", "/console/lateness", "Locks of this worker"}, {"runbook", "/console/runbook", "HoldfastExpiryLate"},
		{"inventory", "/console/inventory?" + url.Values{"resource_id": {"concert-hall"}, "slots": {"A-01,A-02,A-03"}, "capacity": {"0"}}.Encode(), "Preview"},
	}
	for _, c := range screens {
		do(t, tab, c.name, media("light"), chromedp.EmulateViewport(1200, 900), chromedp.Navigate(base+c.path))
		until(t, tab, `document.documentElement.classList.contains('has-js') && document.querySelector('main').textContent.includes(`+fmt.Sprintf("%q", c.want)+`)`)
		if c.name == "overview" { // the first rates come a second later
			until(t, tab, `!document.querySelector('.tile .value').textContent.includes('–')`)
		}
		checkAccessible(t, tab, c.name, source)
		saved(t, tab, c.name)
		if heights := evaluated[int](t, tab, `new Set([...document.querySelectorAll('form.filter input, form.filter select, form.filter button')]
			.map(control => control.offsetHeight)).size`); heights > 1 {
			t.Errorf("%s: the controls of the filter have %d heights", c.name, heights)
		}
		if c.name == "lateness" {
			checkTimeAxis(t, tab)
		}
		do(t, tab, c.name+" dark", media("dark"))
		checkAccessible(t, tab, c.name+" dark", source)
		if ground := evaluated[string](t, tab, `getComputedStyle(document.body).backgroundColor`); ground != "rgb(19, 23, 26)" {
			t.Errorf("%s: the dark background is %s", c.name, ground)
		}
		if c.name == "overview" {
			saved(t, tab, "overview-dark")
		}
		do(t, tab, c.name+" on a phone", chromedp.EmulateViewport(400, 800))
		if wide := evaluated[int](t, tab, `document.documentElement.scrollWidth`); wide > 400 {
			t.Errorf("%s is %d px wide in a window of 400", c.name, wide)
		}
		if c.name == "holds" {
			do(t, tab, "light", media("light"))
			saved(t, tab, "phone")
		}
	}
	for _, c := range screens {
		do(t, tab, c.name+" without JavaScript", scripts(false), chromedp.Navigate(base+c.path))
		text, err := chromedp.Run(tab, chromedp.Text("main"))
		stacktest.Must(t, err)
		if !strings.Contains(text, c.want) {
			t.Errorf("%s without JavaScript has no %q", c.name, c.want)
		}
	}
}

// TestConsoleBrowser_LivePage_IsPausedAndCountsDown watches the overview and the holds change, and holds
// them still by the keyboard.
func TestConsoleBrowser_LivePage_IsPausedAndCountsDown(t *testing.T) {
	needBrowser(t)
	t.Parallel()
	s, base := busyTown(t, stacktest.Namespace(t))
	tab := newTab(t)
	do(t, tab, "overview", chromedp.Navigate(base+"/console/"))
	const number = `document.querySelector('.tile .value').textContent`
	first := evaluated[string](t, tab, number)
	until(t, tab, fmt.Sprintf(`%s !== %q && !%s.includes('–')`, number, first, number))
	do(t, tab, "pause", chromedp.KeyEvent("p"))
	until(t, tab, `document.getElementById('pause').getAttribute('aria-pressed') === 'true'`)
	evaluated[int](t, tab, `window.seen = 0; document.addEventListener('htmx:sseBeforeMessage', () => { window.seen++; });
		document.querySelector('#live .tiles').id = 'still'; 0`)
	until(t, tab, `window.seen >= 3`) // the server sends, and the page stays
	if !evaluated[bool](t, tab, `document.getElementById('still') !== null`) {
		t.Error("a paused page changed")
	}
	do(t, tab, "resume", chromedp.KeyEvent("p"))
	until(t, tab, `document.getElementById('still') === null`)

	stay := holds.SlotSelection{CheckIn: "2027-05-01", CheckOut: "2027-05-04"}
	s.answer(s.book("double", "guest", "k2", stay, soon))
	do(t, tab, "holds", chromedp.Navigate(base+"/console/holds?resource_id=double"))
	const left = `document.querySelector('time[data-until]').textContent`
	until(t, tab, `/^[0-9]+:[0-9][0-9]$|^passed$/.test(`+left+`)`)
	before := evaluated[string](t, tab, left)
	until(t, tab, fmt.Sprintf(`%s !== %q`, left, before))
	until(t, tab, left+` === 'passed'`)
	for mode, form := range map[string]string{"utc": `/ UTC$/`, "local": `/:[0-9][0-9]$/`, "relative": `/^in |ago$/`} {
		evaluated[int](t, tab, `document.querySelector('[data-time=`+mode+`]').click(), 0`)
		until(t, tab, form+`.test(document.querySelector('td time:not([data-until])').textContent)`)
	}
	do(t, tab, "reload", chromedp.Reload())
	until(t, tab, `document.querySelector('[aria-pressed=true]') !== null`)
}

// TestConsoleBrowser_Replay_ByKeyboardAlone finds a dead letter, and replays it without a mouse.
func TestConsoleBrowser_Replay_ByKeyboardAlone(t *testing.T) {
	needBrowser(t)
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker("HOLDFAST_CONSOLE=act")
	consoleTown(s)
	tab := newTab(t)
	do(t, tab, "filter", chromedp.Navigate("http://"+worker.http+"/console/dead-letters/list?contains=quantity"))
	press := func(selector string) { // tabs to an element and presses enter
		t.Helper()
		for range 60 {
			do(t, tab, "tab", chromedp.KeyEvent(kb.Tab))
			if evaluated[bool](t, tab, fmt.Sprintf(`document.activeElement.matches(%q)`, selector)) {
				return
			}
		}
		t.Fatalf("%s is not reached by the keyboard", selector)
	}
	press(`input[name=seq][value="2"]`)
	do(t, tab, "select", chromedp.KeyEvent(" "))
	press(`button[value=replay]`)
	do(t, tab, "confirm", chromedp.KeyEvent(kb.Enter))
	until(t, tab, `location.pathname.endsWith('/confirm') && document.readyState === 'complete'`)
	press(`input[name=who]`)
	do(t, tab, "name", chromedp.KeyEvent("ana"))
	press(`input[name=note]`)
	do(t, tab, "reason", chromedp.KeyEvent("fixed"))
	press(`input[name=count]`)
	do(t, tab, "number", chromedp.KeyEvent("1"), chromedp.KeyEvent(kb.Enter))
	until(t, tab, `location.pathname.startsWith('/console/runs/') && document.querySelector('.badge') !== null`)
	until(t, tab, `document.querySelector('.badge').textContent.trim() === 'done'`) // by itself: the page is live
	runs, _, err := s.client.ListRuns(t.Context())
	if err != nil || len(runs) != 1 || runs[0].Operator != "ana@127.0.0.1" || runs[0].Counts[client.ReplayDeadLettered] != 1 {
		t.Errorf("runs: %+v, %v", runs, err)
	}
	saved(t, tab, "run")
}

// TestConsoleBrowser_Map_ScrollsAndShowsCell scrolls the map of many resources: the rows of the last one
// appear, and those that are far away leave the document. A click on a cell shows what holds it.
func TestConsoleBrowser_Map_ScrollsAndShowsCell(t *testing.T) {
	needBrowser(t)
	t.Parallel()
	const resources = 400
	s := newHarness(t)
	worker := s.startWorker("HOLDFAST_CONSOLE=read")
	today := time.Now().UTC()
	night := today.AddDate(0, 0, 1).Format(holds.DateFormat)
	stay := holds.SlotSelection{CheckIn: night, CheckOut: today.AddDate(0, 0, 2).Format(holds.DateFormat)}
	last := ""
	for n := range resources {
		last = fmt.Sprintf("room-%03d", n)
		data := events.InventorySetData{ResourceID: last, SlotSelection: stay, Capacity: 1}
		if id := s.publish(events.InventorySet, last, data); n == resources-1 {
			s.answer(id)
		}
	}
	created := s.answer(s.book(last, "ann", "k", stay, 3600))
	refused := s.answer(s.book(last, "eve", "k2", stay, 3600))
	stacktest.Eventually(t, "the inventory", func() bool {
		return len(s.ofType(holds.EventInventoryUpdated)) == resources
	})
	tab := newTab(t)
	do(t, tab, "map", chromedp.Navigate("http://"+worker.http+"/console/availability"))
	const rows, first = `document.querySelectorAll('.map tbody tr th a').length`, `document.querySelector('.map tbody:nth-of-type(2) th a')`
	until(t, tab, first+` !== null`) // the rows below the window are read before they are seen
	until(t, tab, rows+` < 150`)
	lastRow := fmt.Sprintf(`[...document.querySelectorAll('.map tbody tr')].find(row => row.textContent.includes(%q))`, last)
	if evaluated[bool](t, tab, lastRow+` !== undefined`) {
		t.Error("the document has the last row before it is near")
	}
	height := evaluated[int](t, tab, `document.documentElement.scrollHeight`)
	do(t, tab, "scroll", chromedp.KeyEvent(kb.End))
	until(t, tab, lastRow+` !== undefined`)
	until(t, tab, first+` === null && `+rows+` < 150`)
	if now := evaluated[int](t, tab, `document.documentElement.scrollHeight`); now < height-100 || now > height+100 {
		t.Errorf("the page is %d px high, and was %d px", now, height)
	}
	evaluated[int](t, tab, lastRow+`.querySelector('td.h').click(), 0`)
	until(t, tab, `location.search === '?slot=`+night+`' && document.readyState === 'complete'`)
	shown := evaluated[string](t, tab, `document.querySelector('main').textContent`)
	for _, want := range []string{
		"Slot " + night, "could be retried at", created.Subject[len(created.Subject)-8:], holds.EventHoldCreated, holds.EventHoldRejected,
		holds.ReasonSoldOut,
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("the cell shows no %q:\n%s", want, shown)
		}
	}
	retry := decoded[holds.HoldRejected](t, refused).RetryAt
	if at := fmt.Sprintf(`document.querySelector('h2 + p time').dateTime === %q`, retry.Format(holds.TimeFormat)); !evaluated[bool](t, tab, at) {
		t.Errorf("the page does not say %s", retry)
	}
}
