package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// allowedImports are the imports among our own packages. Every other import is forbidden: holds
// knows neither NATS nor Postgres, locking and lua know no terms of other packages, and only the
// programs import everything.
var allowedImports = map[string][]string{
	"holdfast/cmd/worker":               {"holdfast/internal/audit", "holdfast/internal/client", "holdfast/internal/connect", "holdfast/internal/console", "holdfast/internal/events", "holdfast/internal/holds", "holdfast/internal/locking", "holdfast/internal/lua", "holdfast/internal/postgres", "holdfast/internal/preflight", "holdfast/internal/queries", "holdfast/internal/record", "holdfast/internal/recovery", "holdfast/internal/stack", "holdfast/internal/stack/endpoints", "holdfast/internal/store", "holdfast/internal/telemetry", "holdfast/internal/terminal", "holdfast/internal/token", "holdfast/internal/version"},
	"holdfast/cmd/bench":                {"holdfast/internal/bench", "holdfast/internal/terminal", "holdfast/internal/version"},
	"holdfast/cmd/publisher":            {"holdfast/internal/client", "holdfast/internal/connect", "holdfast/internal/events", "holdfast/internal/holds", "holdfast/internal/members", "holdfast/internal/queries", "holdfast/internal/record", "holdfast/internal/stack/endpoints", "holdfast/internal/terminal", "holdfast/internal/version"},
	"holdfast/internal/audit":           {"holdfast/internal/events", "holdfast/internal/holds", "holdfast/internal/lua", "holdfast/internal/postgres", "holdfast/internal/record", "holdfast/internal/recovery", "holdfast/internal/telemetry", "holdfast/internal/terminal"}, // nouns, subjects and how scripts are run: none of the rules that it checks
	"holdfast/internal/bench":           {"holdfast/internal/client", "holdfast/internal/events", "holdfast/internal/holds", "holdfast/internal/stack", "holdfast/internal/stack/endpoints", "holdfast/internal/store", "holdfast/internal/version"},
	"holdfast/internal/client":          {"holdfast/internal/events", "holdfast/internal/failpoint", "holdfast/internal/holds", "holdfast/internal/members", "holdfast/internal/queries"},
	"holdfast/internal/console":         {"holdfast/docs", "holdfast/internal/client", "holdfast/internal/events", "holdfast/internal/holds", "holdfast/internal/queries", "holdfast/internal/terminal", "holdfast/internal/token"},
	"holdfast/internal/events":          {"holdfast/internal/failpoint", "holdfast/internal/holds", "holdfast/internal/members", "holdfast/internal/telemetry"},
	"holdfast/internal/members":         {"holdfast/internal/holds"},
	"holdfast/internal/preflight":       {"holdfast/internal/audit", "holdfast/internal/client", "holdfast/internal/connect", "holdfast/internal/events", "holdfast/internal/holds", "holdfast/internal/locking", "holdfast/internal/lua", "holdfast/internal/postgres", "holdfast/internal/queries", "holdfast/internal/record", "holdfast/internal/recovery", "holdfast/internal/store"},
	"holdfast/internal/queries":         {"holdfast/internal/events", "holdfast/internal/holds", "holdfast/internal/members"},
	"holdfast/internal/store":           {"holdfast/internal/connect", "holdfast/internal/holds", "holdfast/internal/postgres", "holdfast/internal/record", "holdfast/internal/recovery", "holdfast/internal/telemetry"},
	"holdfast/internal/postgres":        {"holdfast/internal/connect", "holdfast/internal/record"},
	"holdfast/internal/holds":           {"holdfast/internal/failpoint", "holdfast/internal/locking", "holdfast/internal/lua", "holdfast/internal/record", "holdfast/internal/telemetry"},
	"holdfast/internal/recovery":        {"holdfast/internal/failpoint", "holdfast/internal/holds", "holdfast/internal/lua", "holdfast/internal/record", "holdfast/internal/telemetry"},
	"holdfast/internal/connect":         {},
	"holdfast/internal/record":          {},
	"holdfast/internal/locking":         {"holdfast/internal/lua", "holdfast/internal/telemetry"},
	"holdfast/internal/lua":             {},
	"holdfast/internal/telemetry":       {},
	"holdfast/internal/failpoint":       {},
	"holdfast/internal/terminal":        {},
	"holdfast/internal/token":           {},
	"holdfast/internal/version":         {},
	"holdfast/internal/house":           {}, // has tests only
	"holdfast/internal/mutants":         {}, // has tests only
	"holdfast/docs":                     {}, // the runbook, for the console; else tests only, as deployments
	"holdfast/deployments":              {},
	"holdfast/internal/contract":        {}, // only tests use it
	"holdfast/internal/stack":           {"holdfast/internal/stack/endpoints"},
	"holdfast/internal/stack/endpoints": {},
	"holdfast/internal/stack/stacktest": {"holdfast/internal/stack"},
	"holdfast/internal/robustness":      {}, // has tests only
}

// foreignImports are modules that only the packages named may use.
var foreignImports = map[string][]string{
	"github.com/go-redsync/redsync":  {"holdfast/internal/bench", "holdfast/internal/locking"},
	"github.com/bsm/redislock":       {"holdfast/internal/bench"},
	"github.com/santhosh-tekuri":     {"holdfast/internal/contract"},
	"golang.org/x/tools":             {"holdfast/internal/contract"},
	"go.yaml.in/yaml":                {"holdfast/internal/contract"},
	"github.com/prometheus":          {"holdfast/cmd/worker"},
	"go.opentelemetry.io/otel":       {"holdfast/internal/telemetry", "holdfast/cmd/worker"},
	"go.uber.org/fx":                 {"holdfast/cmd/worker"},
	"github.com/KimMachineGun":       {"holdfast/cmd/worker"},
	"github.com/alecthomas/kong":     {"holdfast/cmd/bench", "holdfast/cmd/publisher", "holdfast/cmd/worker", "holdfast/internal/terminal"},
	"github.com/jotaen":              {"holdfast/internal/terminal"},
	"github.com/posener":             {"holdfast/internal/terminal"},
	"github.com/schollz/progressbar": {"holdfast/cmd/bench", "holdfast/cmd/publisher", "holdfast/cmd/worker", "holdfast/internal/terminal"},
	"github.com/jackc/pgx":           {"holdfast/internal/audit", "holdfast/internal/bench", "holdfast/internal/postgres", "holdfast/internal/stack", "holdfast/internal/stack/stacktest", "holdfast/internal/store"},
	"github.com/nats-io/nats.go":     {"holdfast/cmd/publisher", "holdfast/cmd/worker", "holdfast/internal/audit", "holdfast/internal/bench", "holdfast/internal/client", "holdfast/internal/connect", "holdfast/internal/console", "holdfast/internal/events", "holdfast/internal/preflight", "holdfast/internal/queries", "holdfast/internal/stack", "holdfast/internal/stack/stacktest"},
	"github.com/nats-io/nats-server": {"holdfast/internal/stack", "holdfast/internal/stack/stacktest"},
	"github.com/redis/go-redis":      {"holdfast/cmd/worker", "holdfast/internal/audit", "holdfast/internal/bench", "holdfast/internal/connect", "holdfast/internal/holds", "holdfast/internal/locking", "holdfast/internal/lua", "holdfast/internal/preflight", "holdfast/internal/recovery", "holdfast/internal/stack", "holdfast/internal/stack/stacktest"},
	"github.com/HdrHistogram":        {"holdfast/internal/bench"},
	"gonum.org/v1/plot":              {"holdfast/internal/bench"},

	"github.com/nats-io/nats.go/micro": {"holdfast/internal/client", "holdfast/internal/queries"},
}

// TestAllowedImports_EveryPackage_OnlyListed checks the imports of every package against the map
// above; docs/architecture.md draws the main lines.
func TestAllowedImports_EveryPackage_OnlyListed(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-tags", "failpoint", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "holdfast/...").Output()
	stacktest.Must(t, err)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		allowed, known := allowedImports[words[0]]
		if !known {
			t.Errorf("package %s is not on the map", words[0])
		}
		for _, imported := range words[1:] {
			if strings.HasPrefix(imported, "holdfast/") && !slices.Contains(allowed, imported) {
				t.Errorf("%s must not import %s", words[0], imported)
			}
			for module, users := range foreignImports {
				if (imported == module || strings.HasPrefix(imported, module+"/")) && !slices.Contains(users, words[0]) {
					t.Errorf("%s must not import %s", words[0], imported)
				}
			}
		}
	}
}

// TestDependencies_Publisher_NoServersOrPlots keeps publisher small: it links no server, no database code
// of the worker and no plotting library.
func TestDependencies_Publisher_NoServersOrPlots(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "holdfast/cmd/publisher").Output()
	stacktest.Must(t, err)
	for imported := range strings.FieldsSeq(string(out)) {
		for _, unwanted := range []string{"github.com/nats-io/nats-server", "gonum.org/v1/plot", "holdfast/internal/bench", "holdfast/internal/store", "go.opentelemetry.io/otel/exporters", "google.golang.org/grpc"} {
			if imported == unwanted || strings.HasPrefix(imported, unwanted+"/") {
				t.Errorf("publisher must not link %s", imported)
			}
		}
	}
}
