package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAsset_OfAnotherVersion_IsNotKept requests files by the addresses that the pages of this version have and those of
// another version, as behind a proxy during an upgrade. Browsers may keep only the first.
func TestAsset_OfAnotherVersion_IsNotKept(t *testing.T) {
	t.Parallel()
	_, handler := newTestConsole(t, Options{Mode: Read})
	for address, want := range map[string]bool{
		assets()["console.js"]:                     true,
		Prefix + "assets/console.js":               false,
		Prefix + "assets/console.js?0000000000000": false,
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, address, nil))
		if kept := strings.Contains(w.Header().Get("Cache-Control"), "immutable"); w.Code != http.StatusOK || kept != want {
			t.Errorf("%s: status %d, kept %v, want %v", address, w.Code, kept, want)
		}
	}
}
