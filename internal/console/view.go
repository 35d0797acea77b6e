package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// page is a screen.
type page struct {
	Title   string
	Nav     string // the path of its entry in the navigation, below Prefix
	Command string // shows the same in a terminal
	Body    string // the name of its template
	Data    any
	Live    string // the path and query that sends Body again each second, below Prefix; "" for never
	Poll    bool   // Body requests itself again each second until it says otherwise
	Private bool   // it has private data, shown or hidden
	Chart   bool   // it needs uPlot

	// What render sets.
	Path      string
	Namespace string
	CanAct    bool
	Visitor   visitor
	CSRF      string
	SignsIn   bool
	Revealed  bool
	Reveal    string // the address of this page with or without private data
	Now       holds.Time
	Assets    map[string]asset
	Links     []navLink
}

// navLink is an entry of the navigation.
type navLink struct{ Path, Text string }

var navigation = []navLink{
	{"", "Overview"}, {"availability", "Availability"}, {"holds", "Holds"}, {"dead-letters", "Dead letters"}, {"runs", "Runs"},
	{"lateness", "Lateness"}, {"inventory", "Inventory"},
}

// table is a table of any screen.
type table struct {
	Caption string
	Columns []column
	Rows    [][]cell
	Empty   string // the text without rows
	Next    string // the address of the next page; "" at the end
	Select  string // the form that the check boxes belong to
}

// column is a column of a table.
type column struct {
	Name   string
	Number bool // right-aligned
}

// columns returns columns; a name that begins with # is one of numbers.
func columns(names ...string) (all []column) {
	for _, name := range names {
		plain, number := strings.CutPrefix(name, "#")
		all = append(all, column{plain, number})
	}
	return all
}

// cell is one value of a table.
type cell struct {
	Text  string
	Href  string
	Class string     // a class of the stylesheet: ok, warn, bad, mute, id, badge
	Copy  string     // what the button beside it copies; "" for no button
	At    holds.Time // a time, instead of Text
	Until holds.Time // a deadline that is counted down, instead of Text
	Check bool       // a check box with Text as its value
	Share float64    // of a bar behind the value, 0 to 1
}

func text(s string) cell                         { return cell{Text: s} }
func link(s, href string) cell                   { return cell{Text: s, Href: href} }
func at(t holds.Time) cell                       { return cell{At: t} }
func badge(s, class string) cell                 { return cell{Text: s, Class: "badge " + class} }
func number[N ~int | ~int64 | ~uint64](n N) cell { return cell{Text: thousands(int64(n))} }

// path returns an address of the console. query are names and values; those without a value are left out.
func address(where string, query ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		if query[i+1] != "" {
			values.Add(query[i], query[i+1])
		}
	}
	if len(values) == 0 {
		return Prefix + where
	}
	return Prefix + where + "?" + values.Encode()
}

// with returns the address of a request with other values of parameters; "" removes one.
func with(u *url.URL, query ...string) string {
	values := u.Query()
	for i := 0; i+1 < len(query); i += 2 {
		values.Del(query[i])
		if query[i+1] != "" {
			values.Set(query[i], query[i+1])
		}
	}
	if len(values) == 0 {
		return u.Path
	}
	return u.Path + "?" + values.Encode()
}

// thousands formats a number with thin spaces between groups of digits.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:]
	}
	return digits
}

// decimal formats a rate.
func decimal(f float64) string {
	if f < 10 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return thousands(int64(f + 0.5))
}

// span formats a duration for people.
func span(d time.Duration) string {
	switch {
	case d <= 0:
		return "0 s"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'g', 2, 64) + " s"
	default:
		return events.Humanize(d)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// counted returns a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(int64(n)) + " " + noun + "s"
}

// shell quotes a value for a command in a terminal.
func shell(value string) string {
	if value != "" && strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@%+,/-") == "" {
		return value
	}
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}

// command returns a command with flags; those without a value are left out.
func command(base string, flags ...string) string {
	for i := 0; i+1 < len(flags); i += 2 {
		if flags[i+1] != "" {
			base += " " + flags[i] + " " + shell(flags[i+1])
		}
	}
	return base
}

var functions = template.FuncMap{
	"thousands": func(n any) string {
		var i int64
		_, _ = fmt.Sscan(fmt.Sprint(n), &i) // a whole number of any type
		return thousands(i)
	},
	"address": address,
	"rfc":     func(t holds.Time) string { return t.Format(holds.TimeFormat) },
	"utc":     func(t holds.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" },
	"percent": func(share float64) int { return int(100*min(max(share, 0), 1) + 0.5) },
	"list":    func(values ...any) []any { return values },
}

var templates = template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/*.html"))

// render answers a request with a page.
func (c *Console) render(r *request, status int, p *page) {
	p.Path, p.Namespace, p.CanAct, p.Visitor = r.URL.Path, string(c.Namespace), c.Mode == Act, r.visitor
	p.CSRF, p.SignsIn, p.Now, p.Assets, p.Links = r.visitor.csrf, c.Token != nil, now(), c.assets, navigation
	p.Revealed = r.URL.Query().Get("reveal") == "true"
	p.Reveal = with(r.URL, "reveal", "true")
	if p.Revealed {
		p.Reveal = with(r.URL, "reveal", "")
	}
	name := "layout"
	if r.Header.Get("HX-Request") == "true" {
		name = "main"
	}
	var body bytes.Buffer
	if err := templates.ExecuteTemplate(&body, name, p); err != nil {
		c.Log.Error().Err(err).Str("path", r.URL.Path).Msg("console page failed")
		http.Error(r.w, "This page failed, see the log of the worker.", http.StatusInternalServerError)
		return
	}
	r.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	r.w.WriteHeader(status)
	_, _ = r.w.Write(body.Bytes()) // fails only when the client has disconnected
}

// sendPart answers with the body of a page alone.
func (c *Console) sendPart(r *request, p *page) error {
	body, err := part(p)
	if err != nil {
		return err
	}
	r.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = r.w.Write(body) // fails only when the client has disconnected
	return nil
}

// part renders the body of a page alone.
func part(p *page) ([]byte, error) {
	var body bytes.Buffer
	err := templates.ExecuteTemplate(&body, "body", p)
	return body.Bytes(), err
}

// Body calls a template by its name: html/template needs a constant name.
func (p *page) Render() (template.HTML, error) {
	var body bytes.Buffer
	if err := templates.ExecuteTemplate(&body, p.Body, p); err != nil {
		return "", err
	}
	return template.HTML(body.String()), nil //nolint:gosec // html/template has escaped it
}

// asset is a file that pages refer to.
type asset struct {
	Href string // with the hash of the content, so that browsers may keep it
	Type string
	Body []byte
}

// readAssets returns the files of the directory assets.
func readAssets() (map[string]asset, error) {
	entries, err := fs.ReadDir(files, "assets")
	if err != nil {
		return nil, err
	}
	assets := make(map[string]asset, len(entries))
	for _, entry := range entries {
		body, err := fs.ReadFile(files, path.Join("assets", entry.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		kind := mime.TypeByExtension(path.Ext(entry.Name()))
		if kind == "" {
			kind = "text/plain; charset=utf-8"
		}
		href := Prefix + "assets/" + entry.Name() + "?" + hex.EncodeToString(sum[:6])
		assets[entry.Name()] = asset{href, kind, body}
	}
	return assets, nil
}

func (c *Console) asset(w http.ResponseWriter, r *http.Request) {
	file, found := c.assets[r.PathValue("name")]
	if !found {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", file.Type)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(file.Body) // fails only when the client has disconnected
}

// sortedKeys returns the keys, those with the largest values first.
func byValue[N int | uint64](counts map[string]N) []string {
	keys := make([]string, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if counts[a] != counts[b] {
			if counts[a] > counts[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return keys
}
