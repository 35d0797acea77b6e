package deployments

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// promtoolTests is the file of promtool tests, as far as it is read.
type promtoolTests struct {
	RuleFiles          []string         `yaml:"rule_files"`
	EvaluationInterval string           `yaml:"evaluation_interval"`
	Tests              []map[string]any `yaml:"tests"`
}

// testsOf returns the promtool tests that name an alert: others need not run when only its rule differs.
func testsOf(t *testing.T, alert string) string {
	t.Helper()
	var file promtoolTests
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join("prometheus", rulesTestFile))), &file); err != nil {
		t.Fatal(err)
	}
	var some []map[string]any
	for _, test := range file.Tests {
		if strings.Contains(fmt.Sprint(test["alert_rule_test"])+" ", "alertname:"+alert+" ") {
			some = append(some, test)
		}
	}
	file.Tests = some
	text, err := yaml.Marshal(file)
	if err != nil || len(some) == 0 {
		t.Fatalf("%d promtool tests name %s: %v", len(some), alert, err)
	}
	return string(text)
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

// TestAlerts_EachCondition_FiresAsTested runs the promtool tests of the rules. Then it changes one
// rule after the other so that it always fires, or never: the promtool tests must detect each
// change.
func TestAlerts_EachCondition_FiresAsTested(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	stacktest.NeedTool(t, "promtool")
	rules := read(t, filepath.Join("prometheus", rulesFile))
	if out, err := promtool(t, rules, read(t, filepath.Join("prometheus", rulesTestFile))); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, a := range alerts(t) {
		tests := testsOf(t, a.Name)
		for _, expr := range []string{"vector(1)", "vector(1) > 1"} {
			broken := strings.Replace(rules, "expr: "+a.Expr+"\n", "expr: "+expr+"\n", 1)
			if broken == rules {
				t.Fatalf("the expression of %s is not on one line", a.Name)
			}
			if out, err := promtool(t, broken, tests); err == nil || !strings.Contains(out, a.Name) {
				t.Errorf("%s with the expression %s passes, or fails for another reason: %v\n%s", a.Name, expr, err, out)
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

// TestDashboard_EveryPanel_HasValidQueries checks the dashboard: panels do not overlap, and promtool parses
// every query, as the expression of a rule. Package docs checks that a worker has the metrics.
func TestDashboard_EveryPanel_HasValidQueries(t *testing.T) {
	t.Parallel()
	stacktest.NeedTool(t, "promtool")
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal([]byte(read(t, filepath.Join("grafana", "holdfast.json"))), &dashboard,
		json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	rules, queries := "groups:\n  - name: dashboard\n    rules:\n", 0
	filled := make(map[[2]int]string)
	for _, p := range dashboard.Panels {
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
