// Package check validates the files of deployments with the libraries of the programs that read them. It is a
// module of its own, so that Holdfast does not depend on them:
//
//	cd deployments/check && go test -count=1 . # it reads files outside this module, which the cache does not know
package check

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/goreleaser/goreleaser/v2/pkg/config"
	"gopkg.in/yaml.v3"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	sigsyaml "sigs.k8s.io/yaml"
)

const chartDir = "../helm/holdfast"

// TestChart_Lint_NoFinding lints the chart with the rules of `helm lint`. It does not import helm's package action, which takes
// twice as long to compile.
func TestChart_Lint_NoFinding(t *testing.T) {
	for _, message := range lint.All(chartDir, nil, "", true).Messages {
		if !strings.Contains(message.Err.Error(), "icon is recommended") {
			t.Errorf("%s: %v", message.Path, message.Err)
		}
	}
}

// render returns the documents of the chart, by kind.
func render(t *testing.T, values map[string]any) map[string]string {
	t.Helper()
	return renderFor(t, values, "1.30.0")
}

// renderFor is render for a version of Kubernetes.
func renderFor(t *testing.T, values map[string]any, kubernetes string) map[string]string {
	t.Helper()
	files, err := tryRender(t, values, kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	documents := make(map[string]string)
	for name, text := range files {
		if strings.HasSuffix(name, ".txt") || strings.TrimSpace(text) == "" {
			continue
		}
		var header struct{ Kind string }
		if err := yaml.Unmarshal([]byte(text), &header); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		documents[header.Kind] = text
	}
	return documents
}

// tryRender returns the files of the chart by name, or why it refuses values.
func tryRender(t *testing.T, values map[string]any, kubernetes string) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "shop", Namespace: "sales"}, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

// TestChart_Documents_AreStrictlyValid decodes what the chart renders, with the smallest and the largest values,
// into the types of Kubernetes: an unknown or a misplaced field is an error.
func TestChart_Documents_AreStrictlyValid(t *testing.T) {
	types := map[string]any{
		"Deployment": &appsv1.Deployment{}, "Job": &batchv1.Job{}, "Service": &corev1.Service{},
		"PodDisruptionBudget": &policyv1.PodDisruptionBudget{}, "NetworkPolicy": &networkingv1.NetworkPolicy{},
	}
	for name, test := range map[string]struct {
		values map[string]any
		kinds  []string
	}{
		"defaults": {nil, []string{"Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service"}},
		"everything": {map[string]any{
			"autoscaling":    map[string]any{"enabled": true},
			"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
			"secrets":        map[string]any{"apiToken": true},
			"settings": map[string]any{
				"HOLDFAST_HOLD_TTL": "15m", "HOLDFAST_NIGHTS_MAX": 30, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
			},
			"imagePullSecrets": []any{map[string]any{"name": "registry"}},
			"tolerations":      []any{map[string]any{"key": "sales", "operator": "Exists"}},
			"nodeSelector":     map[string]any{"disk": "fast"},
			"podAnnotations":   map[string]any{"team": "sales"},
			"networkPolicy": map[string]any{"from": []any{
				map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"name": "monitoring"}}}}},
		}, []string{"Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "ScaledObject", "Service", "ServiceMonitor"}},
		"least": {map[string]any{
			"migrate": map[string]any{"enabled": false}, "networkPolicy": map[string]any{"enabled": false},
		}, []string{"Deployment", "PodDisruptionBudget", "Service"}},
	} {
		documents := render(t, test.values)
		var kinds []string
		for kind, text := range documents {
			kinds = append(kinds, kind)
			if into, found := types[kind]; found {
				if err := sigsyaml.UnmarshalStrict([]byte(text), into); err != nil {
					t.Errorf("%s: %s: %v\n%s", name, kind, err, text)
				}
			}
		}
		slices.Sort(kinds)
		if !slices.Equal(kinds, test.kinds) {
			t.Errorf("%s: the chart has %v, want %v", name, kinds, test.kinds)
		}
		if name == "everything" && strings.Contains(documents["Deployment"], "\n  replicas:") {
			t.Error("the Deployment sets replicas, which the autoscaler changes")
		}
		if name == "everything" && !strings.Contains(documents["ServiceMonitor"], "\n    release: prometheus\n") {
			t.Errorf("Prometheus does not select the ServiceMonitor:\n%s", documents["ServiceMonitor"])
		}
	}
}

// podsOf returns the pods of the workers and of worker migrate.
func podsOf(t *testing.T, documents map[string]string) map[string]corev1.PodSpec {
	t.Helper()
	var deployment appsv1.Deployment
	var job batchv1.Job
	for kind, into := range map[string]any{"Deployment": &deployment, "Job": &job} {
		if err := sigsyaml.UnmarshalStrict([]byte(documents[kind]), into); err != nil {
			t.Fatal(err)
		}
	}
	return map[string]corev1.PodSpec{"worker": deployment.Spec.Template.Spec, "migrate": job.Spec.Template.Spec}
}

// TestChart_Pod_IsRestricted checks what the pod security standard "restricted" asks for, and that secrets are
// mounted and in no variable.
func TestChart_Pod_IsRestricted(t *testing.T) {
	pods := podsOf(t, render(t, nil))
	for name, pod := range pods {
		container := pod.Containers[0]
		security := container.SecurityContext
		if !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser != 65532 ||
			pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
			*security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem ||
			!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: the pod is not restricted: %+v", name, pod)
		}
		for _, variable := range container.Env {
			if variable.ValueFrom != nil || strings.HasSuffix(variable.Name, "_URL") {
				t.Errorf("%s: %s may have a secret", name, variable.Name)
			}
		}
		if container.Resources.Requests.Cpu().IsZero() || container.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: no resources", name)
		}
	}
	worker := pods["worker"]
	if wait := worker.Containers[0].StartupProbe; int(wait.FailureThreshold*wait.PeriodSeconds) < 60 {
		t.Error("the startup probe ends within a minute")
	}
	if *worker.TerminationGracePeriodSeconds <= 10 {
		t.Error("the pod is killed before its worker has drained")
	}
}

// TestChart_Settings_KeepTheirText gives settings as helm reads them from YAML, where each number is a float64.
func TestChart_Settings_KeepTheirText(t *testing.T) {
	settings := map[string]any{"HOLDFAST_HOLDS_PER_USER": 1e6, "HOLDFAST_NIGHTS_MAX": 30.0, "HOLDFAST_HOLD_TTL": "15m",
		"OTEL_TRACES_SAMPLER_ARG": 0.25, "GOMEMLIMIT": "800MiB", "GOGC": 200.0, "GOMAXPROCS": 2.0}
	want := map[string]string{"HOLDFAST_HOLDS_PER_USER": "1000000", "HOLDFAST_NIGHTS_MAX": "30", "HOLDFAST_HOLD_TTL": "15m",
		"OTEL_TRACES_SAMPLER_ARG": "0.25", "GOMEMLIMIT": "800MiB", "GOGC": "200", "GOMAXPROCS": "2"}
	for name, pod := range podsOf(t, render(t, map[string]any{"settings": settings})) {
		found := make(map[string]string)
		for _, variable := range pod.Containers[0].Env {
			found[variable.Name] = variable.Value
		}
		for variable, text := range want {
			if found[variable] != text {
				t.Errorf("%s: %s is %q, want %q", name, variable, found[variable], text)
			}
		}
	}
}

// TestChart_APIToken_ServiceHasQueries: the image serves /v1 on loopback, which the Service does not reach. A setting has
// another address.
func TestChart_APIToken_ServiceHasQueries(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"127.0.0.1:8081": {"secrets": map[string]any{"apiToken": false}},
		"0.0.0.0:8080":   {"secrets": map[string]any{"apiToken": true}},
		"0.0.0.0:9999": {
			"secrets":  map[string]any{"apiToken": true},
			"settings": map[string]any{"HOLDFAST_API_ADDR": "0.0.0.0:9999"},
		},
	} {
		token := want != "127.0.0.1:8081"
		found := make(map[string]string)
		for _, variable := range podsOf(t, render(t, values))["worker"].Containers[0].Env {
			found[variable.Name] = variable.Value
		}
		if found["HOLDFAST_API_ADDR"] != want || found["HOLDFAST_HTTP_ADDR"] != "0.0.0.0:8080" {
			t.Errorf("with a token %v: /v1 is served on %q, probes on %q", token, found["HOLDFAST_API_ADDR"], found["HOLDFAST_HTTP_ADDR"])
		}
		if has := found["HOLDFAST_API_TOKEN_FILE"] != ""; has != token {
			t.Errorf("with a token %v: its file is named: %v", token, has)
		}
	}
}

// TestChart_EachVariable_ComesOnce: of two variables of one name Kubernetes ignores one, or refuses both. What the chart sets
// itself is no setting.
func TestChart_EachVariable_ComesOnce(t *testing.T) {
	for _, token := range []bool{false, true} {
		for name, accepted := range map[string]string{
			"HOLDFAST_HTTP_ADDR": "", "HOLDFAST_API_TOKEN_FILE": "", "HOLDFAST_NATS_URL_FILE": "", "HOLDFAST_REDIS_URL_FILE": "",
			"HOLDFAST_POSTGRES_URL_FILE": "", "HOLDFAST_API_ADDR": "127.0.0.1:9999", "HOLDFAST_HOLD_TTL": "15m",
		} {
			values := map[string]any{"secrets": map[string]any{"apiToken": token},
				"settings": map[string]any{name: cmp.Or(accepted, "x")}}
			if accepted == "" {
				if _, err := tryRender(t, values, "1.30.0"); err == nil || !strings.Contains(err.Error(), "settings."+name+" must not be given") {
					t.Errorf("with a token %v: %s is a setting: %v", token, name, err)
				}
				continue
			}
			for of, pod := range podsOf(t, render(t, values)) {
				found := make(map[string][]string)
				for _, variable := range pod.Containers[0].Env {
					found[variable.Name] = append(found[variable.Name], variable.Value)
				}
				if !slices.Equal(found[name], []string{accepted}) {
					t.Errorf("with a token %v: %s is %q for the %s, want %s", token, name, found[name], of, accepted)
				}
				for variable, values := range found {
					if len(values) > 1 {
						t.Errorf("with a token %v: %s of the %s comes %d times", token, variable, of, len(values))
					}
				}
			}
		}
	}
}

// TestChart_ValuesThatDisagree_AreRefused: no worker would start, or none be scaled.
func TestChart_ValuesThatDisagree_AreRefused(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"autoscaling.minReplicas (2) must not exceed autoscaling.maxReplicas (1)": {
			"autoscaling": map[string]any{"enabled": true, "maxReplicas": 1}},
		"settings.HOLDFAST_API_ADDR must be on loopback, or set secrets.apiToken": {
			"settings": map[string]any{"HOLDFAST_API_ADDR": "0.0.0.0:9999"}},
	} {
		if _, err := tryRender(t, values, "1.30.0"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", values, err, want)
		}
	}
	for _, age := range []any{"5", "0.5", ".5", "10.25", 2.5, 60} {
		render(t, map[string]any{"autoscaling": map[string]any{"enabled": true, "minReplicas": 3, "maxReplicas": 3, "ageSeconds": age}})
	}
}

// TestChart_APIPort_IsReached: the address of /v1 is a setting. Its port is one of the pod, the Service and the
// NetworkPolicy, unless it is that of the probes or on loopback.
func TestChart_APIPort_IsReached(t *testing.T) {
	for address, want := range map[string][]int32{
		"0.0.0.0:9999": {8080, 9999}, ":9999": {8080, 9999}, "[::]:9999": {8080, 9999}, "0.0.0.0:8080": {8080},
		"127.0.0.1:8081": {8080}, "localhost:8081": {8080}, "[::1]:8081": {8080},
	} {
		documents := render(t, map[string]any{"secrets": map[string]any{"apiToken": true},
			"settings": map[string]any{"HOLDFAST_API_ADDR": address}})
		var service corev1.Service
		var policy networkingv1.NetworkPolicy
		for kind, into := range map[string]any{"Service": &service, "NetworkPolicy": &policy} {
			if err := sigsyaml.UnmarshalStrict([]byte(documents[kind]), into); err != nil {
				t.Fatalf("%v\n%s", err, documents[kind])
			}
		}
		var pod, served, allowed []int32
		ports := make(map[string]int32)
		for _, port := range podsOf(t, documents)["worker"].Containers[0].Ports {
			pod = append(pod, port.ContainerPort)
			ports[port.Name] = port.ContainerPort
		}
		for _, port := range service.Spec.Ports {
			if ports[port.TargetPort.StrVal] == port.Port {
				served = append(served, port.Port)
			}
		}
		for _, port := range policy.Spec.Ingress[0].Ports {
			allowed = append(allowed, ports[port.Port.StrVal])
		}
		for where, found := range map[string][]int32{"the pod": pod, "the Service": served, "the NetworkPolicy": allowed} {
			if !slices.Equal(found, want) {
				t.Errorf("%s: %s has the ports %v, want %v", address, where, found, want)
			}
		}
	}
}

// TestChart_PodEnds_ServiceIsFirst: a worker behind the Service answers until that sends no more requests. Kubernetes before
// 1.30 refuses a pod with a sleep.
func TestChart_PodEnds_ServiceIsFirst(t *testing.T) {
	values := map[string]any{"secrets": map[string]any{"apiToken": true}}
	for kubernetes, want := range map[string]bool{"1.29.4": false, "1.30.0": true, "1.34.1": true} {
		var deployment appsv1.Deployment
		if err := sigsyaml.UnmarshalStrict([]byte(renderFor(t, values, kubernetes)["Deployment"]), &deployment); err != nil {
			t.Fatal(err)
		}
		pod := deployment.Spec.Template.Spec
		life := pod.Containers[0].Lifecycle
		if sleeps := life != nil && life.PreStop.Sleep.Seconds > 0; sleeps != want {
			t.Errorf("Kubernetes %s: the pod sleeps: %v", kubernetes, sleeps)
		}
		if life != nil && *pod.TerminationGracePeriodSeconds <= 10+life.PreStop.Sleep.Seconds {
			t.Error("the pod is killed before its worker has drained")
		}
	}
}

// TestChart_NoWorkerIsReady_NodesCanBeDrained: in a pause by an operator, or while a server is down, no worker is ready.
// Kubernetes then evicts none of them, unless the budget says so.
func TestChart_NoWorkerIsReady_NodesCanBeDrained(t *testing.T) {
	var budget policyv1.PodDisruptionBudget
	if err := sigsyaml.UnmarshalStrict([]byte(render(t, nil)["PodDisruptionBudget"]), &budget); err != nil {
		t.Fatal(err)
	}
	if policy := budget.Spec.UnhealthyPodEvictionPolicy; policy == nil || *policy != policyv1.AlwaysAllow {
		t.Errorf("workers that are not ready are evicted by %v", policy)
	}
}

// TestChart_OtherRelease_ScalesOwnWorkersOnly evaluates the query of the autoscaler where one Prometheus scrapes three releases by
// their ServiceMonitors: of this one an event waits, the others have a backlog, and one of them is paused.
func TestChart_OtherRelease_ScalesOwnWorkersOnly(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		if os.Getenv("HOLDFAST_TEST_TOOLS") == "required" {
			t.Fatal(err)
		}
		t.Skip("promtool is not on PATH (CI requires it: HOLDFAST_TEST_TOOLS=required)")
	}
	var scaled struct {
		Spec struct {
			Triggers []struct{ Metadata struct{ Query string } }
		}
	}
	documents := render(t, map[string]any{"autoscaling": map[string]any{"enabled": true}})
	if err := yaml.Unmarshal([]byte(documents["ScaledObject"]), &scaled); err != nil {
		t.Fatal(err)
	}
	const of = `consumer="requests",instance="10.0.0.1:8080"`
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `tests:
  - interval: 1m
    input_series:
      - {series: 'holdfast_consumer_oldest_age_seconds{namespace="sales",job="shop",%[1]s}', values: '60x5'}
      - {series: 'holdfast_consumer_paused_by_operator{namespace="sales",job="shop",%[1]s}', values: '0 0 0 1x3'}
      - {series: 'holdfast_consumer_oldest_age_seconds{namespace="staging",job="shop",%[1]s}', values: '900x5'}
      - {series: 'holdfast_consumer_paused_by_operator{namespace="staging",job="shop",%[1]s}', values: '1x5'}
      - {series: 'holdfast_consumer_oldest_age_seconds{namespace="sales",job="shop-test",%[1]s}', values: '900x5'}
    promql_expr_test:
      - {expr: &query '%[2]s', eval_time: 2m, exp_samples: [{labels: '{}', value: 60}]}
      - {expr: *query, eval_time: 5m, exp_samples: []}
`, of, scaled.Spec.Triggers[0].Metadata.Query), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestChart_UnknownValue_IsRefused: a typing error in values is not ignored.
func TestChart_UnknownValue_IsRefused(t *testing.T) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, values := range []map[string]any{
		{"replica": 2}, {"secrets": map[string]any{"wroker": "x"}}, {"settings": map[string]any{"HOLD_TTL": "1m"}},
		{"settings": map[string]any{"HOLDFAST_CONSOLE": false}}, // which off means in YAML
		{"networkPolicy": map[string]any{"form": []any{}}}, {"migrate": map[string]any{"enable": false}},
		{"podDisruptionBudget": map[string]any{"minAvailable": 1}}, {"serviceMonitor": map[string]any{"enable": true}},
		{"autoscaling": map[string]any{"maxReplica": 9}},
		{"autoscaling": map[string]any{"minReplicas": 0}}, // no worker would ever start
		{"autoscaling": map[string]any{"ageSeconds": "5s"}}, {"autoscaling": map[string]any{"ageSeconds": 0}},
		{"autoscaling": map[string]any{"ageSeconds": "0.0"}}, {"settings": map[string]any{"GODEBUG": "gctrace=1"}},
	} {
		all, err := chartutil.CoalesceValues(chart, values)
		if err != nil {
			t.Fatal(err)
		}
		if err := chartutil.ValidateAgainstSchema(chart, all); err == nil {
			t.Errorf("%v is accepted", values)
		}
	}
}

// TestChart_CommandsOfREADME_HaveValidValues parses the values of the helm commands in README.md as helm does.
func TestChart_CommandsOfREADME_HaveValidValues(t *testing.T) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^    helm .*`).FindAllString(string(text), -1)
	for _, command := range commands {
		values := make(map[string]any)
		for _, set := range regexp.MustCompile(`--set (\S+)`).FindAllStringSubmatch(command, -1) {
			if err := strvals.ParseInto(set[1], values); err != nil {
				t.Fatal(err)
			}
		}
		all, err := chartutil.CoalesceValues(chart, values)
		if err != nil {
			t.Fatal(err)
		}
		if err := chartutil.ValidateAgainstSchema(chart, all); err != nil || len(values) == 0 {
			t.Errorf("%s: %v", command, err)
		}
	}
	if len(commands) != 2 {
		t.Errorf("README.md has %d helm commands, want 2", len(commands))
	}
}

// passwords returns the variables that compose.yaml needs, as passwords.sh prints them.
func passwords(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../compose/passwords.sh")
	if err != nil {
		t.Fatal(err)
	}
	variables := []string{"HOLDFAST_API_TOKEN=token"}
	for _, name := range regexp.MustCompile(`\b(NATS|REDIS|POSTGRES|GRAFANA)_[A-Z]+\b`).FindAllString(string(text), -1) {
		variables = append(variables, "HOLDFAST_"+name+"_PASSWORD=secret")
	}
	return variables
}

// TestCompose_Files_AreValid reads compose.yaml as docker compose does, with the variables of passwords.sh and no
// other.
func TestCompose_Files_AreValid(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{"../compose/compose.yaml"}, cli.WithEnv(passwords(t)),
		cli.WithProfiles([]string{"*"}), cli.WithInterpolation(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for name, service := range project.Services {
		for _, volume := range service.Volumes {
			if volume.Type != "bind" {
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if !volume.ReadOnly {
				t.Errorf("%s: %s is writable", name, volume.Source)
			}
		}
		for variable, value := range service.Environment {
			if value == nil || *value == "" || strings.Contains(*value, ":@") {
				t.Errorf("%s: %s has no value or an empty password", name, variable)
			}
		}
		if service.Build != nil && (!service.ReadOnly || !slices.Contains(service.CapDrop, "ALL")) {
			t.Errorf("%s: the program may write or has capabilities", name)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to the network", name, port.Published)
			}
		}
	}
	if len(project.Services) < 15 {
		t.Errorf("%d services", len(project.Services))
	}
}

// TestCompose_MissingPassword_IsRefused: without passwords.sh nothing starts with an empty password.
func TestCompose_MissingPassword_IsRefused(t *testing.T) {
	variables := passwords(t)
	for i, missing := range variables {
		name, _, _ := strings.Cut(missing, "=")
		options, err := cli.NewProjectOptions([]string{"../compose/compose.yaml"},
			cli.WithEnv(slices.Delete(slices.Clone(variables), i, i+1)), cli.WithProfiles([]string{"*"}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := options.LoadProject(context.Background()); err == nil || !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestYAML_OtherFiles_Decode decodes the other files, that of goreleaser strictly.
func TestYAML_OtherFiles_Decode(t *testing.T) {
	if _, err := config.Load("../goreleaser.yaml"); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"../compose/prometheus.yaml", "../compose/grafana-provisioning.yaml",
		"../compose/grafana-dashboards.yaml"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		var into map[string]any
		if err := decoder.Decode(&into); err != nil || len(into) == 0 {
			t.Errorf("%s: %v", path, err)
		}
	}
}
