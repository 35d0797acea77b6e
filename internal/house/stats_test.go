package house

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var statsFlag = flag.Bool("stats", false, "print the size of the tree")

// Limits of one function and of one line.
const (
	functionLinesMax = 60
)

// support are directories whose code is not part of the product: it tests, measures or starts servers for tests.
var support = []string{"cmd/bench", "internal/bench", "internal/robustness", "internal/stack/stacktest", "internal/contract", "internal/mutants", "internal/house", "internal/failpoint", "docs", "deployments", ".ci/gotest"}

// unpairedTests are test files of the product without a source file of their name, and why.
var unpairedTests = map[string]string{
	"cmd/worker/imports_test.go": "it checks the imports of every package",
}

// size is what one package consists of.
type size struct {
	files, lines, tests, lua int
	unpaired, long           []string
}

// TestPairs_ProductTests_BesideTheirSource checks that the tests of x.go are in x_test.go or x_subject_test.go.
func TestPairs_ProductTests_BesideTheirSource(t *testing.T) {
	t.Parallel()
	unpaired := make(map[string]bool)
	for _, path := range paths(t, ".go") {
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") || slices.ContainsFunc(support, func(dir string) bool {
			return strings.HasPrefix(name, dir+"/")
		}) || paired(path) {
			continue
		}
		unpaired[name] = true
		if unpairedTests[name] == "" {
			t.Errorf("%s: no source file has its name; rename it, or add it to unpairedTests with a reason", name)
		}
	}
	for name := range unpairedTests {
		if !unpaired[name] {
			t.Errorf("%s: is in unpairedTests, and is not an unpaired test", name)
		}
	}
}

// TestStats_Functions_AreBounded bounds the length of functions outside of tests and, with -stats, prints the size
// of each package.
func TestStats_Functions_AreBounded(t *testing.T) {
	t.Parallel()
	sizes := make(map[string]*size)
	of := func(path string) *size {
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(path) != ".go" { // in the directory of a package's scripts or queries
			dir = filepath.Dir(dir)
		}
		if sizes[dir] == nil {
			sizes[dir] = &size{}
		}
		return sizes[dir]
	}
	for _, path := range paths(t, ".go", ".lua", ".sql") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines, s := strings.Count(string(text), "\n"), of(path)
		switch {
		case strings.HasSuffix(path, "_test.go"):
			s.tests += lines
			if !paired(path) {
				s.unpaired = append(s.unpaired, filepath.Base(path))
			}
			continue
		case filepath.Ext(path) != ".go":
			s.lua += lines
			continue
		}
		s.files, s.lines = s.files+1, s.lines+lines
		for name, length := range functions(t, path) {
			if length > functionLinesMax {
				t.Errorf("%s: %s has %d lines, at most %d", path, name, length, functionLinesMax)
				s.long = append(s.long, fmt.Sprintf("%s %d", name, length))
			}
		}
	}
	if *statsFlag {
		t.Log("\n" + table(sizes))
	}
}

// paired reports whether the test file has a source file of the same name, or holds a part of the fixture.
func paired(path string) bool {
	if name := filepath.Base(path); strings.HasPrefix(name, "harness_") || name == "export_test.go" {
		return true
	}
	source := strings.TrimSuffix(path, "_test.go")
	for _, system := range []string{"_linux", "_unix"} {
		source = strings.TrimSuffix(source, system)
	}
	for { // place_fault_test.go tests place.go
		if _, err := os.Stat(source + ".go"); err == nil {
			return true
		}
		cut := strings.LastIndex(filepath.Base(source), "_")
		if cut < 0 {
			return false
		}
		source = filepath.Join(filepath.Dir(source), filepath.Base(source)[:cut])
	}
}

// functions returns the lengths of the functions in a file.
func functions(t *testing.T, path string) map[string]int {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	lengths := make(map[string]int)
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			length := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1
			lengths[f.Name.Name] = max(lengths[f.Name.Name], length) // several types may have a method of that name
		}
	}
	return lengths
}

func table(sizes map[string]*size) string {
	var out strings.Builder
	row := func(name string, s size) {
		fmt.Fprintf(&out, "%-28s %6d %7d %7d %7d %9d %6d\n", name, s.files, s.lines, s.lua, s.tests, len(s.unpaired), len(s.long))
	}
	fmt.Fprintf(&out, "%-28s %6s %7s %7s %7s %9s %6s\n", "package", "files", "lines", "Lua,SQL", "tests", "unpaired", "long")
	var product, rest size
	for _, dir := range slices.Sorted(maps.Keys(sizes)) {
		s := sizes[dir]
		row(dir, *s)
		sum := &product
		if slices.Contains(support, dir) {
			sum = &rest
		}
		sum.files, sum.lines, sum.lua, sum.tests = sum.files+s.files, sum.lines+s.lines, sum.lua+s.lua, sum.tests+s.tests
		sum.unpaired, sum.long = append(sum.unpaired, s.unpaired...), append(sum.long, s.long...)
	}
	row("product", product)
	row("tests, benchmarks, tools", rest)
	fmt.Fprintf(&out, "\nunpaired: test files without a source file of their name; long: functions of more than %d lines: %s\n",
		functionLinesMax, strings.Join(slices.Sorted(slices.Values(product.long)), ", "))
	return out.String()
}
