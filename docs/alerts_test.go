package docs_test

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestAlerts_EveryMetric_ExistsAtAWorker searches for the metrics of the alerting rules, and of their tests, in
// /metrics of the running worker. One that no worker has can never fire.
func TestAlerts_EveryMetric_ExistsAtAWorker(t *testing.T) {
	t.Parallel()
	metrics := metricsOf(t, dev)
	names := regexp.MustCompile(`\bholdfast_[a-z_]+`)
	for _, file := range []string{"holdfast.rules.yaml", "holdfast.rules.test.yaml"} {
		text, err := os.ReadFile(stacktest.Deployment("prometheus", file))
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
