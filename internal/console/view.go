package console

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"holdfast/internal/holds"
	"holdfast/internal/terminal"
)

// page is a screen.
type page struct {
	Title    string
	Nav      string // the path of its entry in the navigation, below Prefix
	Command  string // shows the same in a terminal
	Body     string // the name of its template
	Data     any
	Live     string // the path and query that sends Body again each second, below Prefix; "" for never
	Poll     bool   // Body requests itself again each second until it says otherwise
	Part     bool   // the answer is Body alone
	Private  bool   // it has private data, shown or hidden
	Revealed bool   // it shows private data although the request does not say so
	Chart    bool   // it needs uPlot

	// What render sets.
	Content   template.HTML // of Body
	Namespace string
	CanAct    bool
	Visitor   visitor
	CSRF      string
	SignsIn   bool
	Reveal    string // the address of this page with or without private data
	Now       holds.Time
}

// screens are the entries of the navigation. The path of one is its name in lower case, with hyphens.
var screens = []string{"Overview", "Availability", "Holds", "Dead letters", "Runs", "Lateness", "Inventory"}

// table is a table of any screen.
type table struct {
	Caption string
	Columns []column
	Rows    [][]cell
	Empty   string // the text without rows
	Next    string // the address of the next page; "" at the end
	Select  string // of dead letters with check boxes: their stream
}

// column is a column of a table.
type column struct {
	Name   string
	Number bool // right-aligned
}

// newTable returns a table without rows. A column whose name begins with # is one of numbers.
func newTable(caption, empty string, names ...string) *table {
	t := &table{Caption: caption, Empty: empty}
	for _, name := range names {
		plain, number := strings.CutPrefix(name, "#")
		t.Columns = append(t.Columns, column{plain, number})
	}
	return t
}

func (t *table) add(row ...cell) { t.Rows = append(t.Rows, row) }

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

func text(s string) cell         { return cell{Text: s} }
func link(s, href string) cell   { return cell{Text: s, Href: href} }
func at(t holds.Time) cell       { return cell{At: t} }
func badge(s, class string) cell { return cell{Text: s, Class: "badge " + class} }
func number(n any) cell          { return cell{Text: thousands(n)} }

// address returns an address of the console. query are names and values; those without a value are left out.
func address(where string, query ...string) string {
	return with(&url.URL{Path: Prefix + where}, query...)
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
		return u.EscapedPath()
	}
	return u.EscapedPath() + "?" + values.Encode()
}

// given returns those parameters of a request that have a value.
func given(q url.Values, names ...string) url.Values {
	values := url.Values{}
	for _, name := range names {
		if value := strings.TrimSpace(q.Get(name)); value != "" {
			values.Set(name, value)
		}
	}
	return values
}

const thinSpace = "\u202f"

// thousands formats a whole number of any type with thin spaces between groups of digits.
func thousands(n any) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + thinSpace + digits[i:]
	}
	return digits
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// counted returns a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}

// capital returns a word with its first character in upper case.
func capital(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

// command returns a command with flags; those without a value are left out.
func command(base string, flags ...string) string {
	for i := 0; i+1 < len(flags); i += 2 {
		if flags[i+1] != "" {
			base += " " + terminal.Flag(flags[i], flags[i+1])
		}
	}
	return base
}

var functions = template.FuncMap{
	"thousands": thousands,
	"screens":   func() []string { return screens },
	"screen": func(name string) string {
		return address(strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, screens[0])), " ", "-"))
	},
	"address": address,
	"rfc":     func(t holds.Time) string { return t.Format(holds.TimeFormat) },
	"utc":     func(t holds.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" },
	"percent": func(share float64) int { return int(100*min(max(share, 0), 1) + 0.5) },
	"asset":   func(name string) string { return assets()[name] },
}

var templates = template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/*.html"))

// render answers a request with a page.
func (c *Console) render(r *request, status int, p *page) {
	p.Namespace, p.CanAct, p.Visitor = string(c.Namespace), c.Mode == Act, r.visitor
	p.CSRF, p.SignsIn, p.Now = r.visitor.csrf, c.Token != nil, holds.TimeFromMillis(time.Now().UnixMilli())
	p.Revealed = p.Revealed || r.reveals()
	p.Reveal = with(r.URL, "reveal", "true")
	if p.Revealed {
		p.Reveal = with(r.URL, "reveal", "")
	}
	if p.Private && p.Revealed {
		c.Log.Info().Str("what", r.URL.Path).Str("who", r.visitor.String()).Str("via", "console").Msg("private data revealed")
	}
	body, err := p.execute(p.Body)
	if err == nil && !p.Part {
		p.Content = template.HTML(body) //nolint:gosec // html/template has escaped it
		name := "layout"
		if r.Header.Get("HX-Request") == "true" {
			name = "main"
		}
		body, err = p.execute(name)
	}
	if err != nil {
		c.Log.Error().Err(err).Str("path", r.URL.Path).Msg("console page failed")
		http.Error(r.w, "This page failed, see the log of the worker.", http.StatusInternalServerError)
		return
	}
	r.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	r.w.WriteHeader(status)
	_, _ = r.w.Write(body) // fails only when the client has disconnected
}

// execute returns a template with the data of a page, in a form that is safe to show.
func (p *page) execute(name string) ([]byte, error) {
	var body bytes.Buffer
	err := templates.ExecuteTemplate(&body, name, p)
	return printableHTML(body.Bytes()), err
}

// printableHTML escapes the texts of a page as terminal.Printable does: events cannot change the order of a line, or
// hide a part of it. It keeps white space, and what buttons and forms use: attributes, and the texts of areas. It copies all
// else from body, so that what html/template has escaped stays so: the tokenizer unescapes its own copy.
func printableHTML(body []byte) []byte {
	if !bytes.ContainsFunc(body, isUnprintable) {
		return body
	}
	var b bytes.Buffer
	area, tokens := false, html.NewTokenizer(bytes.NewReader(body))
	for kind := tokens.Next(); kind != html.ErrorToken; kind = tokens.Next() { // the end: the reader does not fail
		one := body[:len(tokens.Raw())]
		body = body[len(one):]
		if kind != html.TextToken {
			name, _ := tokens.TagName()
			area = kind == html.StartTagToken && atom.Lookup(name) == atom.Textarea
		}
		if kind != html.TextToken || area {
			b.Write(one)
			continue
		}
		for len(one) > 0 {
			r, size := utf8.DecodeRune(one)
			if isUnprintable(r) {
				b.WriteString(terminal.Printable(string(one[:size])))
			} else {
				b.Write(one[:size])
			}
			one = one[size:]
		}
	}
	b.Write(body) // nothing, unless a tag is incomplete
	return b.Bytes()
}

func isUnprintable(r rune) bool {
	return !unicode.IsPrint(r) && !strings.ContainsRune("\t\n\r"+thinSpace, r) || r == utf8.RuneError
}

// assets returns the addresses of the files that pages refer to, by name. Each has the hash of the
// content, so that browsers may keep it.
var assets = sync.OnceValue(func() map[string]string {
	hrefs := make(map[string]string)
	entries, _ := files.ReadDir("assets") // they are embedded
	for _, entry := range entries {
		body, _ := files.ReadFile("assets/" + entry.Name())
		hrefs[entry.Name()] = fmt.Sprintf("%sassets/%s?%.6x", Prefix, entry.Name(), sha256.Sum256(body))
	}
	return hrefs
})

// asset answers with a file of the directory assets.
func asset(w http.ResponseWriter, r *http.Request) {
	if r.URL.String() == assets()[r.PathValue("name")] { // else the page is of a worker of another version
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.StripPrefix(Prefix, http.FileServerFS(files)).ServeHTTP(w, r)
}

// fact is a value with its name.
type fact struct{ Name, Value string }

// countFacts returns counts as facts, the largest first.
func countFacts(counts map[string]int) (all []fact) {
	for _, name := range terminal.ByCount(counts) {
		all = append(all, fact{name, thousands(counts[name])})
	}
	return all
}
