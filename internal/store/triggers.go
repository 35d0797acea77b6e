package store

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// notifyTriggers are the triggers of inventory that notify workers of its changes.
var notifyTriggers = []string{
	"a_changed_capacity_is_told", "a_deleted_slot_is_told", "a_new_slot_is_told", "a_renamed_slot_is_notified",
	"a_truncation_is_notified",
}

// triggerState says whether inventory notifies workers of each change.
type triggerState struct {
	text     string   // another one after each change of the triggers
	disabled []string // those that do not fire in every session
	missing  []string
}

func scanTriggers(row pgx.Row) (t triggerState, err error) {
	err = row.Scan(&t.text, &t.disabled, &t.missing)
	return t, err
}

// fix returns what makes inventory notify of each change, "" when it does.
func (t *triggerState) fix(namespace string) string {
	var lines []string
	if len(t.disabled) > 0 {
		lines = append(lines, "ALTER TABLE "+pgx.Identifier{namespace, "inventory"}.Sanitize()+
			" ENABLE ALWAYS TRIGGER "+strings.Join(t.disabled, ", ENABLE ALWAYS TRIGGER ")+";")
	}
	if len(t.missing) > 0 {
		lines = append(lines, "restore the missing triggers of inventory from a dump of the schema: "+strings.Join(t.missing, ", "))
	}
	return strings.Join(lines, "\n")
}
