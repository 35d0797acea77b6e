package stack

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// programs are the paths of the server programs; empty for servers that Options does not select.
type programs struct {
	redis    string
	postgres postgresBin
}

// postgresBin are the two programs of one Postgres installation.
type postgresBin struct{ postgres, initdb string }

// The usual directories of server programs that are not on PATH. The matches of a pattern with a
// version are searched from the newest version to the oldest.
var (
	redisPlaces = []string{
		"/usr/local/bin", "/usr/bin", "/usr/sbin", "/usr/local/sbin",
		"/opt/homebrew/bin", "/opt/homebrew/opt/redis*/bin", "/usr/local/opt/redis*/bin", "/opt/redis*/bin",
	}
	postgresPlaces = []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/usr/local/bin", "/usr/bin",
		"/opt/homebrew/opt/postgresql*/bin", "/opt/homebrew/bin", "/usr/local/opt/postgresql*/bin",
	}
)

// programs finds the programs of the selected servers. It installs missing ones unless
// Options.NoInstall is set.
func (o Options) programs(ctx context.Context) (programs, error) {
	find := func() (found programs, missing []string) {
		if o.Redis || o.LockServers > 0 {
			if found.redis = findRedis(os.Getenv("PATH")); found.redis == "" {
				missing = append(missing, "redis-server")
			}
		}
		if o.Postgres {
			if found.postgres = findPostgres(os.Getenv("PATH"), o.dataVersion()); found.postgres.postgres == "" {
				missing = append(missing, "postgresql")
			}
		}
		return found, missing
	}
	found, missing := find()
	if len(missing) == 0 {
		return found, nil
	}
	err := thisInstaller(o.Progress).install(ctx, o.NoInstall, func() []string {
		found, missing = find()
		return missing
	})
	return found, err
}

// dataVersion returns the major version of Postgres that created the data in o.Dir, "" without data.
// Only that version can read the data.
func (o Options) dataVersion() string {
	if o.Dir == "" {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(o.Dir, "postgres", "PG_VERSION"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func findRedis(path string) string {
	for _, dir := range searchDirs(path, redisPlaces) {
		if p := filepath.Join(dir, "redis-server"); executable(p) {
			return p
		}
	}
	return ""
}

// findPostgres returns a directory's postgres and initdb; it skips directories with only one of them.
// Debian's directory of the given version, if any, comes before PATH.
func findPostgres(path, version string) postgresBin {
	dirs := searchDirs(path, postgresPlaces)
	if version != "" {
		dirs = slices.Insert(dirs, 0, filepath.Join("/usr/lib/postgresql", filepath.Base(version), "bin"))
	}
	for _, dir := range dirs {
		bin := postgresBin{filepath.Join(dir, "postgres"), filepath.Join(dir, "initdb")}
		if executable(bin.postgres) && executable(bin.initdb) {
			return bin
		}
	}
	return postgresBin{}
}

// searchDirs returns the absolute directories of PATH, then the matches of the patterns in places.
func searchDirs(path string, places []string) []string {
	var dirs []string
	for _, dir := range filepath.SplitList(path) {
		if filepath.IsAbs(dir) { // a relative directory depends on the working directory
			dirs = append(dirs, dir)
		}
	}
	for _, pattern := range places {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			panic("stack: malformed place " + pattern)
		}
		slices.SortStableFunc(matches, func(a, b string) int { return slices.Compare(numbers(b), numbers(a)) })
		dirs = append(dirs, matches...)
	}
	return dirs
}

// numbers returns the numbers in s, by which versions compare.
func numbers(s string) []int {
	var ns []int
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.Atoi(f)
		if err != nil {
			n = 0 // too many digits for a version
		}
		ns = append(ns, n)
	}
	return ns
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
