package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// Sets of flags that several commands have.
const (
	theNATS    = " nats-url nats-url-file nats-creds-file nats-nkey-file nats-ca-file nats-cert-file nats-key-file context"
	theServers = theNATS + " redis-url postgres-url redis-url-file redis-ca-file redis-cert-file redis-key-file" +
		" postgres-url-file namespace"
	theLifetimes = " hold-lifetime-max request-key-ttl"
	thePolicies  = " hold-ttl" + theLifetimes + " hold-ttl-max payment-window late-payment holds-per-user nights-max horizon"
	theLocks     = " lock-strategy lock-redis-urls lock-lease lock-renew-max lock-fair lock-wait"
	theRest      = " inbound-keep http-addr reconcile otlp-endpoint otlp-traces-endpoint api-addr api-token-file console console-user-header api-insecure nats-monitor-urls stream-replicas preflight log-level log-format no-notifications no-timer"
)

// TestFlags_EachCommand_ShowsWhatItUses checks that the help of each command lists exactly the
// flags that it uses, its own flags first. Add a new setting to the row of each command that reads
// it.
func TestFlags_EachCommand_ShowsWhatItUses(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"dev":         "once traffic layout data-dir install" + theServers + thePolicies + theLocks + theRest,
		"run":         "embedded no-migrate data-dir install" + theServers + thePolicies + theLocks + theRest,
		"migrate":     theServers + thePolicies + " nats-monitor-urls stream-replicas preflight log-level log-format",
		"healthcheck": "http-addr timeout data-dir",
		"nagios":      "http-addr api-addr api-token-file warning critical data-dir",
		"preflight":   "no-migrate output data-dir" + theServers + theLifetimes + " lock-strategy lock-redis-urls console nats-monitor-urls stream-replicas",
		"locks":       "http-addr output data-dir",
		"pause":       "for reason who" + theNATS + " namespace consumers output data-dir",
		"top":         "http-addr api-addr api-token-file once data-dir",
		"resume":      theNATS + " namespace consumers output data-dir",
		"audit":       "resource-id capacity-by-events repair yes output data-dir" + theServers + " request-key-ttl",
		"rebuild":     "yes output data-dir" + theServers + " hold-ttl" + theLifetimes,
		"completion":  "",
	}
	for _, command := range commandsFrom("run") {
		var flags []string
		grouped := false
		for _, flag := range command.Flags {
			flags = append(flags, flag.Name)
			if grouped = grouped || flag.Group != nil; grouped && flag.Group == nil && !flag.Hidden {
				t.Errorf("worker %s: its own flag --%s is listed after the flags of a group", command.Name, flag.Name)
			}
		}
		if expected, known := want[command.Name]; !known || !slices.Equal(flags, strings.Fields(expected)) {
			t.Errorf("worker %s has the flags %v\nwant %v", command.Name, flags, strings.Fields(expected))
		}
		if code, help := execute(t.Context(), command.Name, "--help"); code != exitOK ||
			!strings.Contains(help, "Example") || !strings.Contains(help, "  worker "+command.Name) {
			t.Errorf("worker %s --help: exit code %d, or no example of the command:\n%s", command.Name, code, help)
		}
	}
}

// TestSettings_FlagAndEnvironment_FlagWins sets options by flag, by variable, and by both.
func TestSettings_FlagAndEnvironment_FlagWins(t *testing.T) {
	t.Setenv("HOLDFAST_HOLD_TTL", "20s")
	t.Setenv("HOLDFAST_LOCK_WAIT", "1s")
	t.Setenv("HOLDFAST_DATA_DIR", "")
	var out strings.Builder
	parsed, err := newParser(streams{&out, &out}).Parse([]string{"run", "--hold-ttl", "30s"})
	stacktest.Must(t, err)
	set := parsed.Selected().Target.Addr().Interface().(*runCommand)
	if set.HoldTTL.String() != "30s" || set.LockWait.String() != "1s" || set.DataDir != defaultDataDir ||
		set.Namespace != defaultNamespace {
		t.Errorf("hold-ttl %s, lock-wait %s, data-dir %s, namespace %s", set.HoldTTL, set.LockWait, set.DataDir,
			set.Namespace)
	}
}

// TestUnknownVariables_RunAndMigrate_AreLogged runs both without servers: they log the variable before they ask for these.
func TestUnknownVariables_RunAndMigrate_AreLogged(t *testing.T) {
	for _, variable := range []string{
		"HOLDFAST_HOLDTTL", "HOLDFAST_HOLD_TTL", "HOLDFAST_WHO", // misspelt; a setting; one of another command
		"HOLDFAST_SERVICE_HOST", "HOLDFAST_WORKER_SERVICE_PORT_HTTP", "HOLDFAST_PORT", "HOLDFAST_PORT_8080_TCP_ADDR",
		"HOLDFAST_NATS_WORKER_PASSWORD",
	} {
		t.Setenv(variable, "5m")
	}
	for _, command := range []string{"run", "migrate"} {
		var log strings.Builder
		if code := run(t.Context(), []string{command, "--log-format", "json"}, streams{&log, &log}); code != exitUsage {
			t.Errorf("worker %s: exit code %d without URLs", command, code)
		}
		if !strings.Contains(log.String(), `"variables":["HOLDFAST_HOLDTTL"]`) {
			t.Errorf("worker %s logs:\n%s", command, log.String())
		}
	}
}

// TestCommands_EmbeddedSettings_AreExported checks that kong calls the hooks of all settings, which read files and check
// values: it calls none of what an unexported struct embeds.
func TestCommands_EmbeddedSettings_AreExported(t *testing.T) {
	t.Parallel()
	var check func(of reflect.Type)
	check = func(of reflect.Type) {
		for field := range of.Fields() {
			if field.Type.Kind() != reflect.Struct {
				continue
			}
			embeds := slices.ContainsFunc(slices.Collect(field.Type.Fields()), func(f reflect.StructField) bool { return f.Anonymous })
			if field.Anonymous && !field.IsExported() && embeds {
				t.Errorf("%v embeds %v", of, field.Type)
			}
			check(field.Type)
		}
	}
	check(reflect.TypeFor[cli]())
}
