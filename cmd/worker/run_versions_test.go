package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// formatKey returns the Redis key of the data format.
func (s *harness) formatKey() string { return s.namespace + ":{0}:format" }

// sql runs a statement as the owner of the schema.
func (s *harness) sql(statement string) {
	s.t.Helper()
	stacktest.PostgresSQL(s.t, s.urls.postgres, statement)
}

// TestSupervisor_NewerVersionRaisedFormat_WorkerEnds raises the data format in Redis, and the
// schema version in Postgres, while a worker runs. The worker decides nothing more and exits with
// 1, and its events wait.
func TestSupervisor_NewerVersionRaisedFormat_WorkerEnds(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		change, undo func(s *harness)
	}{
		"redis": {
			change: func(s *harness) { s.redis.Set(s.t.Context(), s.formatKey(), recovery.Format+1, 0) },
			undo:   func(s *harness) { s.redis.Set(s.t.Context(), s.formatKey(), recovery.Format, 0) },
		},
		"postgres": {
			change: func(s *harness) { s.sql("UPDATE " + s.namespace + ".schema_compatibility SET works_from = 9999") },
			undo:   func(s *harness) { s.sql("UPDATE " + s.namespace + ".schema_compatibility SET works_from = 1") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHarness(t)
			worker := s.startWorker()
			s.setInventory("hall", seat, 1)
			one.change(s)
			select {
			case <-worker.exited:
			case <-time.After(stacktest.WaitBound):
				t.Fatal("the worker keeps running")
			}
			var exit *exec.ExitError
			if !errors.As(worker.err, &exit) || exit.ExitCode() != exitFailed {
				t.Errorf("the worker exited with %v, want exit code %d", worker.err, exitFailed)
			}
			if log := worker.log.String(); !strings.Contains(log, "start a newer version") {
				t.Errorf("the log lacks the remedy: %s", log)
			}
			selection := s.book("hall", "ana", "k", seat, hour)
			one.undo(s)
			s.startWorker()
			s.wantAnswer(selection, holds.EventHoldCreated)
		})
	}
}

// TestSupervisor_FormatLost_IsWrittenAgain removes the format from Redis. A running worker writes
// it again.
func TestSupervisor_FormatLost_IsWrittenAgain(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.startWorker()
	stacktest.Must(t, s.redis.Del(t.Context(), s.formatKey()).Err())
	stacktest.Eventually(t, "the format to be written", func() bool {
		noted, err := s.redis.Get(t.Context(), s.formatKey()).Int()
		return err == nil && noted == recovery.Format
	})
}

// TestRun_NewerSchemaThatWorks_WorkerStarts starts a worker that migrates on a schema that a newer
// version has extended compatibly.
func TestRun_NewerSchemaThatWorks_WorkerStarts(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.sql("INSERT INTO " + s.namespace + ".goose_db_version (version_id, is_applied) VALUES (9999, true)")
	s.startWorker()
	s.setInventory("hall", seat, 1)
}

// TestVersions_LastCommitBesideThisOne_OneOutcomePerEvent runs a worker of the previous commit
// beside one of this tree, under a load of all events. It stops the new one, as a rollback does,
// and later the old one, as an upgrade does. The old one migrates first. At the end Redis loses a partition while both run.
func TestVersions_LastCommitBesideThisOne_OneOutcomePerEvent(t *testing.T) {
	skipVersions(t)
	t.Parallel()
	before := lastCommit(t)
	shared := stacktest.Shared()
	s := &harness{t: t, urls: urls{shared.NATSURL, shared.RedisURL, shared.PostgresURL}, namespace: stacktest.Namespace(t)}
	older := s.startBuild(before)
	s.begin() // migrates
	newer := s.startWorker()
	load := newSale(s, "double")
	end := load.start(16)

	older.decidesMore(t, "the old worker to take part")
	newer.decidesMore(t, "the new worker to take part")
	newer.stop(t)
	older.decidesMore(t, "the old worker to go on alone")
	newer = s.startWorker()
	newer.decidesMore(t, "the new worker to take part again")
	older.stop(t)
	newer.decidesMore(t, "the new worker to go on alone")
	older = s.startBuild(before)
	older.decidesMore(t, "the old worker to take part again")
	s.losePartition(t, "double") // either of the two may notice it first
	newer.decidesMore(t, "the new worker to go on after a loss")
	end()
	load.check()
}

// TestVersions_ScriptsChanged_ReplacedOneByOne replaces three workers of the last commit, under a load of all events,
// by workers of this tree whose Lua scripts all have another text: Redis knows them by other names. At each moment
// two or more workers run, at first of both versions. This tree has created the schema.
func TestVersions_ScriptsChanged_ReplacedOneByOne(t *testing.T) {
	skipVersions(t)
	t.Parallel()
	before := lastCommit(t)
	changed := buildWithChangedScripts(t)
	s := newHarness(t)
	workers := []*process{s.startBuild(before), s.startBuild(before), s.startBuild(before)}
	load := newSale(s, "double")
	end := load.start(16)
	for i, older := range workers {
		older.decidesMore(t, "an old worker to take part")
		workers[i] = s.startBuild(changed)
		workers[i].decidesMore(t, "a new worker to take part")
		older.stop(t)
	}
	for _, newer := range workers {
		newer.decidesMore(t, "the new workers to go on alone")
	}
	end()
	load.check()
}

// skipVersions skips a test that builds another commit, unless it is due.
func skipVersions(t *testing.T) {
	t.Helper()
	switch {
	case !stacktest.Long(t.Name()):
		t.Skip("it builds another commit: HOLDFAST_TEST_LONG=1 runs it")
	case stacktest.LeastPrivilege(), os.Getenv("HOLDFAST_LOCK_STRATEGY") != "":
		t.Skip("other privileges and lock strategies show nothing more")
	}
}

// startBuild starts a worker of another build.
func (s *harness) startBuild(binary string) *process {
	s.t.Helper()
	p := launchBinary(s.t, binary, true, s.runArgs())
	p.awaitStarted(s.t)
	return p
}

// decidesMore waits until a worker has decided some more batches of requests.
func (p *process) decidesMore(t *testing.T, what string) {
	t.Helper()
	began := p.sections(t)
	p.eventually(t, what, func() bool { return p.sections(t) >= began+20 })
}

// buildWithChangedScripts builds the worker of this tree with a comment at the end of each Lua script.
func buildWithChangedScripts(t *testing.T) (binary string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	stacktest.Must(t, err)
	scripts, err := filepath.Glob(filepath.Join(root, "internal", "*", "lua", "*.lua"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts: %v", len(scripts), err)
	}
	const comment = "-- changed by TestVersions_ScriptsChanged"
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for i, script := range scripts {
		text, err := os.ReadFile(script)
		stacktest.Must(t, err)
		overlay.Replace[script] = filepath.Join(dir, fmt.Sprintf("%d.lua", i))
		stacktest.Must(t, os.WriteFile(overlay.Replace[script], append(text, "\n"+comment+"\n"...), 0o600))
	}
	list, err := json.Marshal(overlay)
	stacktest.Must(t, err)
	stacktest.Must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600))
	binary = filepath.Join(dir, "worker")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, "./cmd/worker")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(binary)
	stacktest.Must(t, err)
	if got := bytes.Count(program, []byte(comment)); got != len(scripts) {
		t.Fatalf("%d of %d scripts are changed in the program", got, len(scripts))
	}
	return binary
}

// lastCommit builds the worker of the last commit that differs from this tree.
func lastCommit(t *testing.T) (binary string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	stacktest.Must(t, err)
	command := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("this test needs the commit before this one (git, and in a shallow clone: git fetch --deepen=1): %s: %v: %s", cmd, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := "HEAD"
	if command(root, "git", "status", "--porcelain", "--", "go.mod", "*.go", "*.lua", "*.sql") == "" {
		commit = "HEAD~1"
	}
	t.Logf("the last commit is %s", command(root, "git", "log", "-1", "--format=%h %s", commit))
	tree := t.TempDir()
	archive := filepath.Join(t.TempDir(), "tree.tar")
	command(root, "git", "archive", "-o", archive, commit)
	command(tree, "tar", "-xf", archive)
	binary = filepath.Join(t.TempDir(), "worker")
	command(tree, "go", "build", "-o", binary, "./cmd/worker")
	return binary
}

// sections returns how many batches of requests a worker has decided under locks since its start.
func (p *process) sections(t *testing.T) (n int) {
	t.Helper()
	families, err := readMetrics(t.Context(), p.http)
	stacktest.Must(t, err)
	classes, err := lockReport(families)
	stacktest.Must(t, err)
	for _, c := range classes {
		n += c.Sections
	}
	return n
}
