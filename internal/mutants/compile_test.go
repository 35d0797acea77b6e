package mutants

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goPackage is a package as go list describes it.
type goPackage struct {
	ImportPath string
	Dir        string
	Export     string // the file with its exported types
	GoFiles    []string
}

// compiler checks the types of changed files, which takes some milliseconds where go build takes a second.
type compiler struct {
	files    *token.FileSet
	packages map[string]goPackage // by directory
	imports  types.Importer
}

func newCompiler(t *testing.T) *compiler {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", "./...")
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := make(map[string]string)
	c := &compiler{files: token.NewFileSet(), packages: make(map[string]goPackage)}
	for all := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := all.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath], c.packages[p.Dir] = p.Export, p
	}
	c.imports = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	return c
}

// check returns an error if the package of the file at path does not compile with the text in its place.
func (c *compiler) check(path, text string) error {
	p, ok := c.packages[filepath.Dir(path)]
	if !ok {
		return fmt.Errorf("%s belongs to no package", path)
	}
	files := make([]*ast.File, 0, len(p.GoFiles))
	for _, name := range p.GoFiles {
		full := filepath.Join(p.Dir, name)
		var source any // nil: the file itself
		if full == path {
			source = text
		}
		file, err := parser.ParseFile(c.files, full, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	_, err := (&types.Config{Importer: c.imports}).Check(p.ImportPath, c.files, files, nil)
	return err
}
