package stack

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEndpointsAreReadBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	s, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.NATSURL, s.PostgresURL = "nats://127.0.0.1:1", "postgres://postgres@127.0.0.1:2/postgres?sslmode=disable"
	path, err := s.WriteEndpoints(dir)
	if err != nil || path != filepath.Join(dir, "endpoints.env") {
		t.Fatalf("WriteEndpoints = %q, %v", path, err)
	}
	got, err := ReadEndpoints(path)
	want := map[string]string{"HOLDFAST_NATS_URL": s.NATSURL, "HOLDFAST_POSTGRES_URL": s.PostgresURL}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("ReadEndpoints = %v, %v; want %v", got, err, want)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left after Close: %v, %v", left, err)
	}
}

func TestEndpointsOfAnotherStay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := &Stack{RedisURL: "redis://127.0.0.1:1/0", endpoints: map[string]string{}}, &Stack{RedisURL: "redis://127.0.0.1:2/0", endpoints: map[string]string{}}
	for _, s := range []*Stack{first, second} {
		if _, err := s.WriteEndpoints(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.removeEndpoints(); err != nil {
		t.Error(err)
	}
	got, err := ReadEndpoints(filepath.Join(dir, "endpoints.env"))
	if err != nil || got["HOLDFAST_REDIS_URL"] != second.RedisURL {
		t.Errorf("endpoints of the second after the first has closed: %v, %v", got, err)
	}
}

func TestReadEndpointsRefuses(t *testing.T) {
	t.Parallel()
	if _, err := ReadEndpoints(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v, want ErrNotExist", err)
	}
	for name, content := range map[string]string{
		"no value":     "HOLDFAST_NATS_URL=\n",
		"no sign":      "HOLDFAST_NATS_URL\n",
		"foreign name": "PATH=/tmp\n",
		"too long":     strings.Repeat("#\n", endpointsBytesMax),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "endpoints.env")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := ReadEndpoints(path); err == nil {
				t.Errorf("read %v", got)
			}
		})
	}
}
