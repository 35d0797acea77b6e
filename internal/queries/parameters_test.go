package queries

import (
	"strings"
	"testing"
)

// TestParseQuery_WrongSlot_NamesTheParameter checks that an error names what the URL has, not the member of
// an event.
func TestParseQuery_WrongSlot_NamesTheParameter(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"resource_id=hall&slot=a,b":                         "slot: must match",
		"resource_id=hall&slot=a&slot=a":                    "slot: must not repeat",
		"resource_id=hall&slot=a&check_in=2030-01-01":       "slot: must not be together with nights",
		"resource_id=hall&slots=a":                          "slots: unknown parameter",
		"resource_id=hall&check_in=1&check_out=2":           "check_in: ",
		"resource_id=hall&resource_id=hall&slot=a":          "resource_id: given more than once",
		"resource_id=hall&slot=" + strings.Repeat("a", 999): "slot: must match",
	} {
		if _, _, err := ParseQuery(query); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", query, err, want)
		}
	}
	resource, selection, err := ParseQuery("resource_id=hall&slot=a&slot=b")
	if err != nil || resource != "hall" || strings.Join(selection.Slots, " ") != "a b" {
		t.Errorf("two slots: %s %v %v", resource, selection, err)
	}
}
