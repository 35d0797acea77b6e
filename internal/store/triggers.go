package store

import (
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// notifyTriggers are the triggers of inventory that notify workers of its changes.
var notifyTriggers = []string{
	"a_changed_capacity_is_told", "a_deleted_slot_is_told", "a_new_slot_is_told", "a_renamed_slot_is_notified",
	"a_truncation_is_notified",
}

// guardTriggers keep what is reserved when slots are deleted and inserted. Migrations leave them off under
// session_replication_role = replica.
var guardTriggers = []string{"a_new_slot_begins_with_what_is_reserved", "a_slot_with_reservations_stays"}

// dateTrigger dates a capacity that is set by SQL.
const dateTrigger = "a_set_capacity_is_dated"

// inventoryTriggers are all of a schema of SchemaVersion.
var inventoryTriggers = append(slices.Concat(notifyTriggers, guardTriggers), dateTrigger)

// Triggers says which triggers of inventory are off.
type Triggers struct {
	text     string   // another one after each change of the triggers
	disabled []string // those that do not fire in every session, or, of guardTriggers, not in ordinary ones
	missing  []string
}

func (t *Triggers) queue(b *pgx.Batch, names []string) {
	b.Queue(query("inventory_triggers"), names, guardTriggers).QueryRow(func(row pgx.Row) error {
		return row.Scan(&t.text, &t.disabled, &t.missing)
	})
}

// Off returns the names of the triggers that are missing, or do not fire in each session in which they must.
func (t *Triggers) Off() []string { return slices.Concat(t.disabled, t.missing) }

func (t *Triggers) off(names []string) bool {
	return slices.ContainsFunc(t.Off(), func(name string) bool { return slices.Contains(names, name) })
}

// Oversell reports whether slots are sold twice because a trigger is off.
func (t *Triggers) Oversell() bool { return t.off(guardTriggers) }

// Risk says what happens while triggers are Off, the worst first. It returns "" when none is.
func (t *Triggers) Risk() string {
	switch {
	case t.Oversell():
		return "slots that are deleted and inserted again are sold twice"
	case t.off(notifyTriggers):
		return "workers read Postgres for each decision, because they would miss capacity that is changed by SQL"
	case len(t.Off()) > 0:
		return "workers remove old nights, and do not see that their capacity was set lately"
	default:
		return ""
	}
}

// Fix returns what enables the triggers of a namespace that are Off, "" when none is.
func (t *Triggers) Fix(namespace string) string {
	var lines []string
	if t.Oversell() {
		lines = append(lines, "-- then run worker audit --repair: it corrects reserved of slots that were inserted again")
	}
	if len(t.disabled) > 0 {
		var enable []string
		for _, name := range t.disabled {
			command := "ENABLE ALWAYS TRIGGER "
			if slices.Contains(guardTriggers, name) {
				command = "ENABLE TRIGGER "
			}
			enable = append(enable, command+name)
		}
		lines = append(lines, "ALTER TABLE "+pgx.Identifier{namespace, "inventory"}.Sanitize()+" "+
			strings.Join(enable, ", ")+";")
	}
	if len(t.missing) > 0 {
		lines = append(lines, "restore the missing triggers of inventory from a dump of the schema: "+strings.Join(t.missing, ", "))
	}
	return strings.Join(lines, "\n")
}
