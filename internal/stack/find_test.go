package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func program(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), mode))
	return path
}

func TestFindRedis_OnPath_ComesBeforeUsualPlaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := program(t, filepath.Join(dir, "b", "redis-server"), 0o755)
	program(t, filepath.Join(dir, "a", "redis-server"), 0o644) // not executable
	path := strings.Join([]string{
		"relative", filepath.Join(dir, "absent"), filepath.Join(dir, "a"), filepath.Join(dir, "b"),
	}, string(os.PathListSeparator))
	if got := findRedis(path); got != want {
		t.Errorf("redis-server found at %q, want %q", got, want)
	}
}

func TestFindPostgres_WithoutInitdb_IsSkipped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program(t, filepath.Join(dir, "a", "postgres"), 0o755)
	want := program(t, filepath.Join(dir, "b", "postgres"), 0o755)
	program(t, filepath.Join(dir, "b", "initdb"), 0o755)
	path := filepath.Join(dir, "a") + string(os.PathListSeparator) + filepath.Join(dir, "b")
	if got := findPostgres(path, ""); got.postgres != want {
		t.Errorf("postgres found at %q, want %q", got.postgres, want)
	}
}

func TestSearchDirs_SeveralVersions_NewestFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, version := range []string{"9.6", "15", "17", "9"} {
		program(t, filepath.Join(dir, version, "bin", "postgres"), 0o755)
	}
	var got []string
	for _, d := range searchDirs("", []string{filepath.Join(dir, "*", "bin")}) {
		got = append(got, filepath.Base(filepath.Dir(d)))
	}
	if strings.Join(got, " ") != "17 15 9.6 9" {
		t.Errorf("order of versions: %v", got)
	}
}

func TestFindPostgres_DataExists_ItsVersionFirst(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir()}
	if got := o.dataVersion(); got != "" {
		t.Errorf("version without data: %q", got)
	}
	writeFile(t, filepath.Join(o.Dir, "postgres", "x"))
	must(t, os.WriteFile(filepath.Join(o.Dir, "postgres", "PG_VERSION"), []byte("15\n"), 0o600))
	if got := o.dataVersion(); got != "15" {
		t.Errorf("version of data: %q", got)
	}
}
