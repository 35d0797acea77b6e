package endpoints

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead_MissingOrMalformed_Fails(t *testing.T) {
	t.Parallel()
	if _, err := Read(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v, want ErrNotExist", err)
	}
	for name, content := range map[string]string{
		"no value":     "HOLDFAST_NATS_URL=\n",
		"no sign":      "HOLDFAST_NATS_URL\n",
		"foreign name": "PATH=/tmp\n",
		"too long":     strings.Repeat("#\n", bytesMax),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), FileName)
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := Read(path); err == nil {
				t.Errorf("Read = %v, want an error", got)
			}
		})
	}
}
