package deployments

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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

// promtool runs promtool test on rules in a temporary directory and returns its output.
func promtool(t *testing.T, rules string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{rulesFile: rules,
		rulesTestFile: read(t, filepath.Join("prometheus", rulesTestFile))} {
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
	t.Parallel()
	stacktest.NeedTool(t, "promtool")
	rules := read(t, filepath.Join("prometheus", rulesFile))
	if out, err := promtool(t, rules); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, a := range alerts(t) {
		for _, expr := range []string{"vector(1)", "vector(1) > 1"} {
			broken := strings.Replace(rules, "expr: "+a.Expr+"\n", "expr: "+expr+"\n", 1)
			if broken == rules {
				t.Fatalf("the expression of %s is not on one line", a.Name)
			}
			if out, err := promtool(t, broken); err == nil || !strings.Contains(out, a.Name) {
				t.Errorf("%s with the expression %s passes, or fails for another reason: %v\n%s", a.Name, expr, err, out)
			}
		}
	}
}
