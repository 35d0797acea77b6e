package docs_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestAlerts_EveryMetric_ExistsAtAWorker searches for the metrics of the alerting rules, of their tests and of the
// dashboard, in /metrics of the running worker. An alert on one that no worker has can never fire.
func TestAlerts_EveryMetric_ExistsAtAWorker(t *testing.T) {
	t.Parallel()
	metrics := metricsOf(t, dev)
	names := regexp.MustCompile(`\bholdfast_[a-z_]+`)
	for _, file := range []string{
		"prometheus/holdfast.rules.yaml", "prometheus/holdfast.rules.test.yaml", "grafana/holdfast.json",
	} {
		text, err := os.ReadFile(stacktest.Deployment(filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		found := names.FindAllString(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range found {
			if !strings.Contains(metrics, "\n"+name+" ") && !strings.Contains(metrics, "\n"+name+"{") {
				t.Errorf("%s names %s, which is not in /metrics:\n%s", file, name, metrics)
			}
		}
	}
}

// TestAlerts_EveryLabelValue_ExistsAtAWorker searches for the values of labels in the alerting rules, also those that a rule
// excludes, in /metrics of the running worker. A rule on a value that no worker has can never fire, or fires always.
func TestAlerts_EveryLabelValue_ExistsAtAWorker(t *testing.T) {
	t.Parallel()
	metrics := metricsOf(t, dev)
	rules, err := os.ReadFile(stacktest.Deployment("prometheus", "holdfast.rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	selector, matcher := regexp.MustCompile(`\b(holdfast_[a-z_]+)\{([^}]*)\}`), regexp.MustCompile(`([a-z]+)(=~|!=|=)"([^"]*)"`)
	checked := 0
	for _, line := range strings.Split(string(rules), "\n") {
		expr, isExpr := strings.CutPrefix(line, "        expr: ")
		if !isExpr {
			continue
		}
		for _, found := range selector.FindAllStringSubmatch(expr, -1) {
			for _, m := range matcher.FindAllStringSubmatch(found[2], -1) {
				label, values := m[1], m[3]
				if m[2] != "=~" {
					values = regexp.QuoteMeta(values)
				}
				series := regexp.MustCompile(`(?m)^` + found[1] + `\{(?:[^}]*,)?` + label + `="(?:` + values + `)"[,}]`)
				if checked++; !series.MatchString(metrics) {
					t.Errorf("a rule has %s of %s, which is not in /metrics", m[0], found[1])
				}
			}
		}
	}
	if checked == 0 {
		t.Error("the rules name no label")
	}
}

// TestAlerts_EachRule_HasItsEntryInTheRunbook compares the rules with the headings of the runbook: each rule says
// what is wrong, and links to its own entry, which has all parts; and no entry is left of a rule that is gone.
func TestAlerts_EachRule_HasItsEntryInTheRunbook(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(stacktest.Deployment("prometheus", "holdfast.rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile("runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	entries := make(map[string]string)
	for _, entry := range strings.Split(string(runbook), "\n## ")[1:] {
		name, body, _ := strings.Cut(entry, "\n")
		entries[name] = body
	}
	rules := strings.Split(string(text), "      - alert: ")[1:]
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		link := "\n          runbook_url: docs/runbook.md#" + strings.ToLower(name) + "\n"
		for _, part := range []string{"\n          severity: ", "\n          summary: ", "\n          description: >-\n", link} {
			if !strings.Contains(rule, part) {
				t.Errorf("the rule %s has no line %q", name, part)
			}
		}
		for _, part := range []string{"- **Customers**", "- **Check**", "- **Do**", "- **Done**"} {
			if strings.Count(entries[name], part) != 1 {
				t.Errorf("the runbook's entry for %s has not one %s", name, part)
			}
		}
	}
	if len(rules) == 0 || len(entries) != len(rules) {
		t.Errorf("%d rules and %d entries in the runbook", len(rules), len(entries))
	}
}

func metricsOf(t *testing.T, s site) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.httpAddr+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true // there is only one question
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // only read
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v\n%s", answer.Status, err, body)
	}
	return string(body)
}
