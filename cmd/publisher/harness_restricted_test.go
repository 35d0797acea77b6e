package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"holdfast/internal/stack/stacktest"
)

// restricted is the servers of the tests with least privileges, else nil. Each command then runs as
// its user of deployments.
var restricted *stacktest.RestrictedServers

// besideRestricted is a file in the working directory that marks tests with restricted servers.
const besideRestricted = "restricted"

// userOf returns the user of a command.
func userOf(args []string) string {
	if slices.Contains(args, "list") { // also inventory list
		return "operator"
	}
	for _, arg := range args {
		switch arg {
		case "request", "extend", "cancel", "cancel-reservation":
			return "booking"
		case "start-payment", "pay":
			return "payment"
		case "inventory":
			return "inventory"
		case "load", "watch", "dlq":
			return "operator"
		}
	}
	return "operator"
}

// asItsUser adds the NATS URL of the user of a command, unless args have one.
func asItsUser(on *stacktest.RestrictedServers, args []string) []string {
	if on == nil || slices.Contains(args, "--nats-url") {
		return args
	}
	url, _, _ := on.URLs(userOf(args))
	args = append(slices.Clone(args), "--nats-url", url)
	if on.CAFile() != "" {
		args = append(args, "--nats-ca-file", on.CAFile())
	}
	return args
}

// workerFlags returns the flags of a worker on restricted servers.
func workerFlags(on *stacktest.RestrictedServers, user string) []string {
	nats, redis, postgres := on.URLs(user)
	flags := []string{"--namespace", stacktest.RestrictedNamespace, "--nats-url", nats, "--redis-url", redis,
		"--postgres-url", postgres}
	if on.CAFile() != "" {
		flags = append(flags, "--nats-ca-file", on.CAFile(), "--redis-ca-file", on.CAFile())
	}
	return flags
}

// migrateRestricted runs worker migrate on restricted servers, as an operator does before the first worker.
func migrateRestricted(ctx context.Context, on *stacktest.RestrictedServers) error {
	out, err := exec.CommandContext(ctx, workerBinary, append([]string{"migrate"},
		workerFlags(on, "migrator")...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("worker migrate: %w: %s", err, out)
	}
	return on.Grant(ctx)
}

// runBesideRestricted runs the tests with a worker that has only the permissions that it needs.
func runBesideRestricted(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if restricted, err = stacktest.StartRestrictedServers(ctx); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, restricted.Close()) }()
	if err := migrateRestricted(ctx, restricted); err != nil {
		return 1, err
	}
	worker := exec.Command(workerBinary, append([]string{"run", "--no-migrate", "--http-addr", "127.0.0.1:0"},
		workerFlags(restricted, "worker")...)...)
	running, err := stacktest.StartProgram(worker)
	if err != nil {
		return 1, err
	}
	line, err := running.AwaitLine(`"worker started"`)
	if err != nil {
		running.Kill()
		return 1, fmt.Errorf("worker run: %w", err)
	}
	var started struct {
		HTTPAddr string `json:"http_addr"`
	}
	if err := json.Unmarshal([]byte(line), &started); err != nil {
		running.Kill()
		return 1, err
	}
	// Tests that inspect the servers use a user with all permissions.
	nats, redis, postgres := restricted.URLs("admin")
	text := fmt.Sprintf("HOLDFAST_NATS_URL=%s\nHOLDFAST_REDIS_URL=%s\nHOLDFAST_POSTGRES_URL=%s\nHOLDFAST_HTTP_ADDR=%s\nHOLDFAST_NAMESPACE=%s\n",
		nats, redis, postgres, started.HTTPAddr, stacktest.RestrictedNamespace)
	err = errors.Join(os.MkdirAll(filepath.Dir(endpointsPath), 0o755), os.WriteFile(endpointsPath, []byte(text), 0o600),
		os.WriteFile(besideRestricted, nil, 0o600))
	if err != nil {
		return 1, err
	}
	code = m.Run()
	err = running.Stop()
	for line := range strings.Lines(running.Output()) {
		if strings.Contains(strings.ToLower(line), "permission") &&
			!strings.Contains(line, "keyspace notifications unavailable") {
			err = errors.Join(err, fmt.Errorf("the worker lacks a permission: %s", line))
		}
	}
	if err != nil {
		code = max(code, 1)
	}
	return code, err
}

// TestMissingNATSPermission_EndsAtOnce runs commands as users without permission. A command fails at once with user
// and subject, and does not wait for its long time limit.
func TestMissingNATSPermission_EndsAtOnce(t *testing.T) {
	t.Parallel()
	on := stacktest.NewRestrictedServers(t)
	url, _, _ := on.URLs("booking")
	for line, want := range map[string]string{
		"pay --payment-id p --hold-id " + someHold: `may not publish to "holdfast.in.payment.confirmed.loft" on NATS`,
		"watch":    `may not publish to "$JS.API.STREAM.INFO.HOLDFAST_OUT" on NATS`,
		"dlq list": `may not publish to "$JS.API.STREAM.INFO.HOLDFAST_DLQ" on NATS`,
	} {
		for _, more := range [][]string{nil, {"-o", "json"}} {
			args := append(append(words(line), "--namespace", stacktest.RestrictedNamespace, "--nats-url", url), more...)
			r := publisher(t, args...).want(t, exitFailed, `publisher: permissions violation: user "holdfast_booking" `+want)
			if strings.Contains(r.errOut, "deadline") || r.out != "" {
				t.Errorf("%s: stdout %s, stderr %s", line, r.out, r.errOut)
			}
		}
	}
}
