package stack

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// TestStart_SeveralAtOnce_OneTemplate is not parallel, because it sets its own cache directory in the
// environment.
func TestStart_SeveralAtOnce_OneTemplate(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	var initdbs atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			o := Options{Postgres: true, Install: InstallNever, Progress: func(string) { initdbs.Add(1) }}
			s, err := Start(t.Context(), o)
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	dir, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	templates, err := filepath.Glob(filepath.Join(dir, templatePrefix+"*"))
	if err != nil || len(templates) != 1 || initdbs.Load() != 1 {
		t.Errorf("%d runs of initdb, templates %v, %v; want one of each", initdbs.Load(), templates, err)
	}
}

func TestCacheDir_WritableByOthers_Refused(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(temp, "file", "below"))
	t.Setenv("HOME", filepath.Join(temp, "file"))
	writeFile(t, filepath.Join(temp, "file"))

	dir, err := cacheDir()
	if err != nil || filepath.Dir(dir) != temp {
		t.Fatalf("without a home: %q, %v; want one in %s", dir, err, temp)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if dir, err := cacheDir(); err == nil {
		t.Errorf("cache directory %s, which others can write to", dir)
	}
}

func TestCopyTree_SymbolicLink_Fails(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	writeFile(t, filepath.Join(src, "base", "1", "file"))
	if err := copyTree(filepath.Join(t.TempDir(), "copy"), src, nil); err != nil {
		t.Error(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(src, "base", "link")); err != nil {
		t.Fatal(err)
	}
	if err := copyTree(filepath.Join(t.TempDir(), "copy"), src, nil); err == nil {
		t.Error("copied a symbolic link")
	}
}

func TestKeepTemplate_TooMany_RemovesOldest(t *testing.T) {
	t.Parallel()
	cache, data := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(data, "PG_VERSION"))
	for _, build := range []string{"a", "b", "c", "d", "e"} {
		if err := keepTemplate(filepath.Join(cache, templatePrefix+build), data); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadDir(cache)
	if err != nil || len(kept) != templatesMax || kept[templatesMax-1].Name() != templatePrefix+"e" {
		t.Errorf("kept %v, %v; want the last %d", kept, err, templatesMax)
	}
}
