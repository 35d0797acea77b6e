package deployments

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v4"

	"holdfast/internal/stack/stacktest"
)

// The alerting rules and the promtool tests of them.
const (
	rulesFile     = "holdfast.rules.yaml"
	rulesTestFile = "holdfast.rules.test.yaml"
)

// alert is a rule in the file.
type alert struct {
	Name string `yaml:"alert"`
	Expr string `yaml:"expr"`
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join("prometheus", rulesFile))), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("the file has no rules")
	}
	return all
}

// promtool runs promtool tests on rules in a temporary directory and returns its output.
func promtool(t *testing.T, rules, tests string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{rulesFile: rules, rulesTestFile: tests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "promtool", "test", "rules", rulesTestFile)
	c.Dir = dir
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestAlerts_EachCondition_FiresAsTested runs the promtool tests of the rules. Then it changes all rules so that they
// always fire, or never: of each alert a promtool test must fail.
func TestAlerts_EachCondition_FiresAsTested(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	stacktest.NeedTool(t, "promtool")
	rules, tests := read(t, filepath.Join("prometheus", rulesFile)), read(t, filepath.Join("prometheus", rulesTestFile))
	if out, err := promtool(t, rules, tests); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, expr := range []string{"vector(1)", "vector(1) > 1"} {
		broken := rules
		for _, a := range alerts(t) {
			rule := fmt.Sprintf("alert: %s\n        expr: %s\n", a.Name, a.Expr)
			if !strings.Contains(broken, rule) {
				t.Fatalf("the expression of %s is not on the next line", a.Name)
			}
			broken = strings.Replace(broken, rule, fmt.Sprintf("alert: %s\n        expr: %s\n", a.Name, expr), 1)
		}
		out, err := promtool(t, broken, tests)
		if err == nil {
			t.Fatalf("the tests pass with the expression %s", expr)
		}
		for _, a := range alerts(t) {
			if !strings.Contains(out, "alertname: "+a.Name+", time:") {
				t.Errorf("no test of %s fails with the expression %s:\n%s", a.Name, expr, out)
			}
		}
	}
}

// panel is a panel of a dashboard; a row has none of the members below its type.
type panel struct {
	Type        string
	Title       string
	Description string
	GridPos     struct{ H, W, X, Y int }
	Targets     []struct{ Expr, RefID string }
}

// panels reads the panels of the dashboard.
func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal([]byte(read(t, filepath.Join("grafana", "holdfast.json"))), &dashboard,
		json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	return dashboard.Panels
}

// TestDashboard_NoHoldExpired_RestoredInTime evaluates the part of the expired holds that were restored in time, while none
// expires, while one of four is late, and without a worker.
func TestDashboard_NoHoldExpired_RestoredInTime(t *testing.T) {
	t.Parallel()
	stacktest.NeedTool(t, "promtool")
	all := panels(t)
	shown := all[slices.IndexFunc(all, func(p panel) bool { return p.Title == "Restored within 2 s" })]
	out, err := promtool(t, "groups: []", fmt.Sprintf(`rule_files: [%s]
tests:
  - interval: 1m
    input_series:
      - {series: 'holdfast_expiry_lateness_seconds_bucket{le="2.0"}', values: '5000x120 5000+3x120 stale'}
      - {series: 'holdfast_expiry_lateness_seconds_count', values: '5000x120 5000+4x120 stale'}
    promql_expr_test:
      - {expr: &shown '%s', eval_time: 2h, exp_samples: [{labels: '{}', value: 1}]}
      - {expr: *shown, eval_time: 4h, exp_samples: [{labels: '{}', value: 0.75}]}
      - {expr: *shown, eval_time: 6h, exp_samples: []}
`, rulesFile, shown.Targets[0].Expr))
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDashboard_EachAlert_HasItsMetrics: who reads of an alert in the runbook finds its metrics on the dashboard.
func TestDashboard_EachAlert_HasItsMetrics(t *testing.T) {
	t.Parallel()
	metrics := regexp.MustCompile(`holdfast_[a-z_]+`)
	shown := make(map[string]bool)
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			for _, metric := range metrics.FindAllString(target.Expr, -1) {
				shown[metric] = true
			}
		}
	}
	for _, a := range alerts(t) {
		for _, metric := range metrics.FindAllString(a.Expr, -1) {
			if !shown[metric] {
				t.Errorf("%s: no panel shows %s", a.Name, metric)
			}
		}
	}
}

// TestDashboard_EveryPanel_HasValidQueries checks the dashboard: panels do not overlap, and promtool parses
// every query, as the expression of a rule. Package docs checks that a worker has the metrics.
func TestDashboard_EveryPanel_HasValidQueries(t *testing.T) {
	t.Parallel()
	stacktest.NeedTool(t, "promtool")
	rules, queries := "groups:\n  - name: dashboard\n    rules:\n", 0
	filled := make(map[[2]int]string)
	for _, p := range panels(t) {
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := filled[at]; other != "" || at[0] >= 24 {
					t.Errorf("panel %s overlaps %s, or is too wide", p.Title, other)
				}
				filled[at] = p.Title
			}
		}
		if p.Type != "row" && (len(p.Targets) == 0 || p.Title == "" || p.Description == "") {
			t.Errorf("panel %q has no query, title or description", p.Title)
		}
		for _, target := range p.Targets {
			queries++
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			rules += fmt.Sprintf("      - record: query_%d\n        expr: '%s'\n", queries, strings.ReplaceAll(expr, "'", "''"))
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", file).CombinedOutput()
	if err != nil || queries < 20 {
		t.Errorf("%d queries: %v\n%s", queries, err, out)
	}
}
