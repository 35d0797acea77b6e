package holds_test

import (
	"reflect"
	"strings"
	"testing"

	"holdfast/internal/holds"
)

// TestPolicy_EachSetting_IsStored changes each setting of a policy: all except LockWait are stored
// and compared.
func TestPolicy_EachSetting_IsStored(t *testing.T) {
	t.Parallel()
	for field := range reflect.TypeFor[holds.Policy]().Fields() {
		changed := testPolicy
		at := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index)
		switch at.Kind() {
		case reflect.String:
			at.SetString("other")
		default:
			at.SetInt(at.Int() + 1)
		}
		mismatch := holds.Policies{{Policy: changed}}.Mismatch(testPolicy)
		if stored := mismatch != ""; stored != (field.Name != "LockWait") || strings.Contains(mismatch, ";") {
			t.Errorf("%s changed: the mismatch is %q", field.Name, mismatch)
		}
		parsed, err := holds.ParsePolicy(changed.Settings())
		changed.LockWait = 0
		if err != nil || parsed != changed {
			t.Errorf("%s changed: stored and parsed it is %+v %v, want %+v", field.Name, parsed, err, changed)
		}
	}
	broken := testPolicy.Settings()
	delete(broken, "horizon")
	if parsed, err := holds.ParsePolicy(broken); err == nil {
		t.Errorf("without horizon the policy is %+v", parsed)
	}
}
