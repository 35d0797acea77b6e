// Package docs_test runs what the pages beside it say, as a stranger does: in a directory in which
// `worker dev` is running.
package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

// site is a worker, beside which a page is tried.
type site struct {
	dir      string   // in which its endpoints file is
	natsURL  string   // as the page has it, without a user
	admin    string   // as who may do everything has it
	httpAddr string   // of the worker
	env      []string // what a reader sets besides
	guarded  bool     // its NATS has the users of deployments/nats/accounts.conf
}

var (
	dev    site   // `worker dev`
	binary string // the worker's; publisher is beside it
)

func TestMain(m *testing.M) {
	stacktest.MainAlone(func() (int, error) { return runBesideWorker(m) })
}

func runBesideWorker(m *testing.M) (code int, err error) {
	if dev.dir, err = os.MkdirTemp("", "holdfast-test-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dev.dir)) }()
	// It is the directory of a clone, as far as the pages need that.
	root, err := filepath.Abs("..")
	if err == nil {
		err = os.Symlink(filepath.Join(root, "deployments"), filepath.Join(dev.dir, "deployments"))
	}
	if err != nil {
		return 1, err
	}
	binary = filepath.Join(dev.dir, "worker")
	if err := stacktest.BuildPrograms(dev.dir, "", "worker", "publisher"); err != nil {
		return 1, err
	}
	worker := exec.Command(binary, "dev", "--http-addr", "127.0.0.1:0")
	worker.Dir, worker.Stderr = dev.dir, os.Stderr
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "HOLDFAST_") || strings.HasPrefix(variable, "HOLDFAST_INSTALL=") {
			worker.Env = append(worker.Env, variable) // what names other servers is not meant for it
		}
	}
	running, err := stacktest.StartProgram(worker)
	if err != nil {
		return 1, err
	}
	if _, err := running.AwaitLine("Ctrl-C stops"); err != nil {
		running.Kill()
		return 1, fmt.Errorf("worker dev: %w", err)
	}
	found, err := endpoints.Read(filepath.Join(dev.dir, ".holdfast", "endpoints.env"))
	dev.natsURL = found["HOLDFAST_NATS_URL"]
	dev.admin, dev.httpAddr = dev.natsURL, found["HOLDFAST_HTTP_ADDR"]
	code = 1
	if err == nil {
		code = m.Run()
	}
	return code, errors.Join(err, running.Stop())
}

// commandLimit bounds one command of a page.
const commandLimit = 2 * time.Minute

// command returns a command that is run in a directory, beside the worker.
func (s site) command(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	c.Env = append(append(os.Environ(), "HOLDFAST_NATS_URL="+s.natsURL), s.env...)
	return c
}

// asOperator returns JetStream as a user who may do everything.
func (s site) asOperator(t *testing.T) jetstream.JetStream {
	t.Helper()
	return stacktest.ConnectNATS(t, s.admin)
}

// withConsumer returns the site with a durable consumer of all that follow.go and follow.mjs follow,
// for tests that run at the same time.
func (s site) withConsumer(t *testing.T, name string) site {
	t.Helper()
	_, err := s.asOperator(t).CreateConsumer(t.Context(), "HOLDFAST_OUT", jetstream.ConsumerConfig{
		Durable: name, FilterSubject: "holdfast.out.hold.>", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.env = append(slices.Clone(s.env), "HOLDFAST_CONSUMER="+name)
	return s
}

var link = regexp.MustCompile(`\]\(([^)#: ]+)(#[^)]*)?\)`)

// TestLinks follows every link from one file of this repository to another.
func TestLinks(t *testing.T) {
	t.Parallel()
	links := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		page, err := os.ReadFile(path)
		for _, found := range link.FindAllSubmatch(page, -1) {
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), string(found[1]))); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		return err
	})
	if err != nil || links < 20 {
		t.Errorf("%d links: %v", links, err)
	}
}
