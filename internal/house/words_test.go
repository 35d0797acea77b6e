package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// root is the directory of the module.
const root = "../.."

// banned are words that have a plainer or a standard replacement; docs/glossary.md has the reasons.
var banned = []struct {
	word    *regexp.Regexp // in text: comments, messages, help, documents, scripts
	ident   []string       // words of identifiers, lower case
	replace string
}{
	{regexp.MustCompile(`(?i)\b(told|tells?|telling|untold)\b`), []string{"told", "tell", "tells", "untold"}, "publish, answer, report, log"},
	{regexp.MustCompile(`(?i)\bletters?\b`), []string{"letter", "letters"}, "dead letter"},
	{regexp.MustCompile(`(?i)\blook(s|ed|ing)?\b`), []string{"look", "looks", "looker", "looked"}, "read, check, inspect, poll"},
	{regexp.MustCompile(`(?i)\blaps(e|ed|es|ing)\b`), []string{"lapse", "lapsed", "lapses"}, "expire"},
	{regexp.MustCompile(`(?i)\bmend(s|ed|ing)?\b`), []string{"mend", "mended", "mends"}, "repair"},
	{regexp.MustCompile(`(?i)\banew\b`), []string{"anew"}, "again"},
	{regexp.MustCompile(`(?i)\b(whoever|somebody|nobody)\b`), []string{"whoever", "somebody", "nobody"}, "the noun: the customer, the worker, the operator"},
	{regexp.MustCompile(`(?i)\b(chronicle|tenure|keeper|torture)\b`), []string{"chronicle", "tenure", "keeper", "torture"}, "outcome log, epoch term, supervisor, robustness suite"},
	{regexp.MustCompile(`(?i)\b(crowd|fate|twins?|verdicts?)\b`), []string{"crowd", "fate", "twin", "twins", "verdict", "verdicts"}, "batch, disposition, dry run, dry-run result"},
	{regexp.MustCompile(`(?i)\b(made|make|makes) again\b`), nil, "recreate"},
	{regexp.MustCompile(`(?i)\bdamage[ds]?\b`), []string{"damage", "damaged", "damages"}, "corruption, corrupt"},
}

// allowed are texts that may stay, with the reason. A text is removed from a line before the line is checked.
var allowed = []struct{ text, reason string }{
	{"dead letter", "the standard term"},
	{"Dead letter", "the standard term"},
	{"dead-letter", "the standard term"},
	{"dead_letter", "a stored name"},
	{`json:"letters"`, "a stored name"},
	{`"letters":`, "a stored name"},
	{`"letters", `, "a flag"},
	{`json:"verdict"`, "a stored name"},
	{`"verdict":`, "a stored name"},
	{`json:"lapses"`, "a stored name"},
	{"rebuild.told", "a failpoint"},
	{"lower-case letters", "the alphabet"},
	{"letters and digits", "the alphabet"},
	{"letter, mark", "the alphabet"},
	{"look like", "a standard verb"},
	{"looks like", "a standard verb"},
	{"looking like", "a standard verb"},
	{`"nobody"`, "an account of the operating system"},
	{"user nobody", "an account of the operating system"},
}

// allowedIdents are identifiers that may stay, with the reason.
var allowedIdents = map[string]string{
	"LookPath": "os/exec",
	"nobody":   "an account of the operating system",
}

// acrossLines matches a dead letter at the end of one line of a comment or a paragraph and the begin of the next.
var acrossLines = regexp.MustCompile(`(?i)\bdead(\n[\t ]*(?:// |-- )?)letter(s?)\b`)

// paths returns the files below root with one of the endings, without data of tests.
func paths(t *testing.T, endings ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if name == "node_modules" || name == ".git" || name == "migrations" || name == "testdata" || name == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		if slices.Contains(endings, filepath.Ext(name)) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestWords_Text_NoBannedWord checks comments, strings, scripts and documents.
func TestWords_Text_NoBannedWord(t *testing.T) {
	t.Parallel()
	for _, path := range paths(t, ".go", ".lua", ".sql", ".md", ".yaml", ".yml", ".html") {
		if strings.Contains(path, "internal/house/") || strings.HasSuffix(path, "docs/glossary.md") {
			continue // they name the words
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		whole := acrossLines.ReplaceAllString(string(text), "${1}dead-letter${2}") // the term may be broken across two lines
		for i, line := range strings.Split(whole, "\n") {
			for _, a := range allowed {
				line = strings.ReplaceAll(line, a.text, "")
			}
			for _, b := range banned {
				if word := b.word.FindString(line); word != "" {
					t.Errorf("%s:%d: %q, say %s", path, i+1, word, b.replace)
				}
			}
		}
	}
}

// TestWords_Identifiers_NoBannedWord checks each declared name of Go code.
func TestWords_Identifiers_NoBannedWord(t *testing.T) {
	t.Parallel()
	for _, path := range paths(t, ".go") {
		if strings.Contains(path, "internal/house/") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]bool)
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok || seen[id.Name] || allowedIdents[id.Name] != "" {
				return true
			}
			seen[id.Name] = true
			words := split(id.Name)
			for i, word := range words {
				for _, b := range banned {
					ofDeadLetter := strings.HasPrefix(word, "letter") && i > 0 && words[i-1] == "dead"
					if slices.Contains(b.ident, word) && !ofDeadLetter {
						t.Errorf("%s: %s has the word %q, say %s", files.Position(id.Pos()), id.Name, word, b.replace)
					}
				}
			}
			return true
		})
	}
}

// split returns the words of a name in mixed case, in lower case.
func split(name string) []string {
	var words []string
	start := 0
	runes := []rune(name)
	for i, r := range runes {
		if i > start && (r == '_' || unicode.IsUpper(r) && !unicode.IsUpper(runes[i-1])) {
			words = append(words, strings.ToLower(strings.Trim(string(runes[start:i]), "_")))
			start = i
		}
	}
	return append(words, strings.ToLower(strings.Trim(string(runes[start:]), "_")))
}
