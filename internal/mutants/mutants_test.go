package mutants

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"holdfast/internal/stack/stacktest"
)

var (
	mutantsFlag = flag.Bool("mutants", false, "run the test of each mutant, with it and without it")
	tenthFlag   = flag.Int("mutants.tenth", -1, "run only every tenth mutant, from this one on (0 to 9)")
	passedFlag  = flag.Bool("mutants.passed", false, "all tests have just passed: do not run them without the mutants first")
	update      = flag.Bool("update", false, "write the table of mutants into docs/faults.md")
)

// root is the directory of the module.
const root = "../.."

// mutant is a change of our code that breaks a promise, and the test that finds it.
type mutant struct {
	name    string
	breaks  string // description of the defect
	promise string // the numbers of the promises in README.md, or the name of another rule
	file    string // below root
	before  string // whole lines, which the file has exactly once
	after   string // the lines that replace them
	pkg     string
	run     string   // the pattern of the test
	args    []string // more arguments of go test
	hangs   bool     // the mutant is found because the test does not end
}

// words splits arguments as a shell does that knows single quotes only.
var words = regexp.MustCompile(`'[^']*'|\S+`)

// all returns the mutants in the order of their areas and names.
func all(t *testing.T) []mutant {
	t.Helper()
	paths, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no mutants in testdata: %v", err)
	}
	mutants := make([]mutant, 0, len(paths))
	for _, path := range paths {
		m, err := read(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		mutants = append(mutants, m)
	}
	return mutants
}

func read(path string) (mutant, error) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return mutant{}, err
	}
	m := mutant{name: strings.TrimSuffix(filepath.Base(path), ".txtar")}
	for line := range strings.Lines(string(archive.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "breaks":
			m.breaks = value
		case "promise":
			m.promise = value
		case "file":
			m.file = value
		case "test":
			args := words.FindAllString(value, -1)
			for i, word := range args {
				args[i] = strings.Trim(word, "'")
			}
			if len(args) < 3 || args[1] != "-run" {
				return mutant{}, fmt.Errorf("want test: <package> -run <pattern> [arguments], found %q", value)
			}
			m.pkg, m.run, m.args = args[0], args[2], args[3:]
		case "hangs":
			m.hangs = value == "true"
		default:
			return mutant{}, fmt.Errorf("unknown key %q", key)
		}
	}
	if len(archive.Files) != 2 || archive.Files[0].Name != "before" || archive.Files[1].Name != "after" {
		return mutant{}, fmt.Errorf("want the sections before and after")
	}
	m.before, m.after = string(archive.Files[0].Data), string(archive.Files[1].Data)
	return m, nil
}

// command is how a reader runs the mutant's test.
func (m mutant) command() string {
	line := "go test " + m.pkg + " -run '" + m.run + "'"
	for _, arg := range m.args {
		if strings.Contains(arg, " ") {
			arg = "'" + arg + "'"
		}
		line += " " + arg
	}
	return line
}

// apply returns the path and the changed text of the file.
func (m mutant) apply() (path, text string, err error) {
	if path, err = filepath.Abs(filepath.Join(root, m.file)); err != nil {
		return "", "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	if n := strings.Count(string(source), m.before); n != 1 {
		return "", "", fmt.Errorf("%s has %d times the lines to replace, want once:\n%s", m.file, n, m.before)
	}
	return path, strings.Replace(string(source), m.before, m.after, 1), nil
}

// TestMutants_CurrentCode_TheyFit checks that each mutant still fits the code: its file has the lines
// once, the result compiles, and its test exists.
func TestMutants_CurrentCode_TheyFit(t *testing.T) {
	t.Parallel()
	names, compiler := make(map[string]bool), newCompiler(t)
	for _, m := range all(t) {
		if names[m.name] || !regexp.MustCompile(`^[a-z][a-z0-9-]+$`).MatchString(m.name) {
			t.Errorf("%s: the name is invalid or used twice", m.name)
		}
		names[m.name] = true
		path, text, err := m.apply()
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if m.after == m.before || m.breaks == "" || m.promise == "" {
			t.Errorf("%s: changes nothing, or lacks breaks or promise", m.name)
		}
		if filepath.Ext(path) == ".go" {
			if err := compiler.check(path, text); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
		if err := m.hasTests(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if err := m.inForce(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

// inForce returns an error if the mutant changes a function of SQL that a later migration replaces.
func (m mutant) inForce() error {
	if filepath.Ext(m.file) != ".sql" {
		return nil
	}
	path, text, err := m.apply()
	if err != nil {
		return err
	}
	changed := strings.Index(text, m.after) + len(m.after)
	functions := regexp.MustCompile(`FUNCTION (\w+)\(`).FindAllStringSubmatch(text[:changed], -1)
	if len(functions) == 0 {
		return nil
	}
	name := functions[len(functions)-1][1]
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.sql"))
	if err != nil {
		return err
	}
	for _, later := range files[slices.Index(files, path)+1:] {
		migration, err := os.ReadFile(later)
		if err != nil {
			return err
		}
		if strings.Contains(string(migration), "CREATE OR REPLACE FUNCTION "+name+"(") {
			return fmt.Errorf("it changes %s of %s, which %s replaces", name, m.file, filepath.Base(later))
		}
	}
	return nil
}

// hasTests returns an error unless the package has each of the tests that the pattern names.
func (m mutant) hasTests() error {
	files, err := filepath.Glob(filepath.Join(root, m.pkg, "*_test.go"))
	if err != nil {
		return err
	}
	var source strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		source.Write(text)
	}
	for one := range strings.SplitSeq(m.run, "|") {
		top, _, _ := strings.Cut(one, "/")
		name, whole := strings.CutPrefix(strings.TrimSuffix(top, "$"), "^")
		if !whole || !strings.HasSuffix(top, "$") || !strings.Contains(source.String(), "\nfunc "+name+"(t *testing.T) {") {
			return fmt.Errorf("%s has no test %s", m.pkg, top)
		}
	}
	return nil
}

// TestMutantTable_Docs_IsCurrent keeps the table in docs/faults.md equal to the mutants.
func TestMutantTable_Docs_IsCurrent(t *testing.T) {
	t.Parallel()
	mutants := all(t)
	want := fmt.Sprintf("There are %d mutants.\n\n", len(mutants)) +
		"| mutant | what it breaks | promise or rule | found by |\n|---|---|---|---|\n"
	for _, m := range mutants {
		want += fmt.Sprintf("| %s | %s | %s | `%s` |\n", m.name, m.breaks, m.promise, strings.ReplaceAll(m.command(), "|", `\|`))
	}
	stacktest.CheckGenerated(t, root+"/docs/faults.md", "mutants",
		"go test ./internal/mutants -run MutantTable -update", want, *update)
}

// chosen returns the mutants to run.
func chosen(t *testing.T) []mutant {
	mutants := all(t)
	if *tenthFlag < 0 {
		return mutants
	}
	return slices.Collect(func(yield func(mutant) bool) {
		for i := *tenthFlag % 10; i < len(mutants); i += 10 {
			if !yield(mutants[i]) {
				return
			}
		}
	})
}
