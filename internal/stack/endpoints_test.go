package stack

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/stack/endpoints"
)

func TestEndpoints_Written_AreReadBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	s, err := Start(t.Context(), Options{EndpointsDir: dir})
	must(t, err)
	s.NATSURL, s.PostgresURL = "nats://127.0.0.1:1", "postgres://postgres@127.0.0.1:2/postgres?sslmode=disable"
	path, err := s.WriteEndpoints()
	if err != nil || path != filepath.Join(dir, "endpoints.env") {
		t.Fatalf("WriteEndpoints = %q, %v", path, err)
	}
	got, err := endpoints.Read(path)
	want := map[string]string{"HOLDFAST_NATS_URL": s.NATSURL, "HOLDFAST_POSTGRES_URL": s.PostgresURL}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("endpoints.Read = %v, %v; want %v", got, err, want)
	}
	must(t, s.Close())
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left after Close: %v, %v", left, err)
	}
}

// TestEndpoints_AnotherStackLives_Refused starts two stacks for one directory. The second start fails with
// the endpoints of the first, and changes nothing. After the first is closed, the directory is free.
func TestEndpoints_AnotherStackLives_Refused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := Options{EndpointsDir: dir}
	first, err := Start(t.Context(), o)
	must(t, err)
	first.RedisURL = "redis://127.0.0.1:1/0"
	path, err := first.WriteEndpoints()
	must(t, err)
	second, err := Start(t.Context(), o)
	inUse, ok := errors.AsType[*InUseError](err)
	if !ok || inUse.Endpoints["HOLDFAST_REDIS_URL"] != first.RedisURL || !errors.Is(err, ErrInUse) {
		t.Errorf("second Start = %v, %v; want an InUseError with the first one's endpoints", second, err)
	}
	if got, err := endpoints.Read(path); err != nil || got["HOLDFAST_REDIS_URL"] != first.RedisURL {
		t.Errorf("endpoints of the first after the other was refused: %v, %v", got, err)
	}
	must(t, first.Close())
	if second, err = Start(t.Context(), o); err != nil {
		t.Fatalf("Start after the first has ended: %v", err)
	}
	must(t, second.Close())
}

// TestEndpoints_StackKilled_DirectoryIsFree starts a stack in a directory with the files of a killed
// process.
func TestEndpoints_StackKilled_DirectoryIsFree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"lock": "", endpoints.FileName: "HOLDFAST_REDIS_URL=redis://127.0.0.1:1/0\n"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	s, err := Start(t.Context(), Options{EndpointsDir: dir})
	must(t, err)
	path, err := s.WriteEndpoints("HOLDFAST_HTTP_ADDR=127.0.0.1:2")
	must(t, err)
	if got, err := endpoints.Read(path); err != nil || len(got) != 1 || got["HOLDFAST_HTTP_ADDR"] == "" {
		t.Errorf("endpoints: %v, %v", got, err)
	}
	must(t, s.Close())
}
