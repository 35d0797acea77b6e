package audit

import (
	"encoding/hex"
	"fmt"
	"strings"

	"holdfast/internal/record"
)

// id is the 16 bytes of a UUID: of a hold, or of an outcome.
type id [16]byte

func (i id) String() string { return hex.EncodeToString(i[:]) }

// parseID parses 32 hex digits.
func parseID(text string) (i id, ok bool) {
	if len(text) != 2*len(i) {
		return id{}, false
	}
	_, err := hex.Decode(i[:], []byte(text))
	return i, err == nil
}

// holdRecord is the record of a hold in Redis, without its selection and metadata.
type holdRecord struct {
	record.Record
	record.Tail
	id   id
	late bool  // it has the slots that a late payment took again
	over int64 // until when it is remembered, in ms; 0 without a tombstone
}

// name returns the field of the record in Redis.
func (r *holdRecord) name() string {
	if r.late {
		return "late:" + r.id.String()
	}
	return r.id.String()
}

// began returns when the hold took its slots.
func (r *holdRecord) began() int64 {
	if r.late {
		return r.Ended
	}
	return r.Created
}

func (r *holdRecord) live() bool { return r.State == "held" || r.State == "confirming" }

// parseRecord parses a record as the scripts return it. head is:
//
//	state deadline_ms created_ms quantity ended_ms by user request_key slots
func parseRecord(name, head string, over int64) (r holdRecord, err error) {
	uuid, late := strings.CutPrefix(name, "late:")
	id, ok := parseID(uuid)
	if !ok {
		return r, fmt.Errorf("record %q: not the id of a hold", name)
	}
	r.id, r.late, r.over = id, late, over
	if r.Record, err = record.Parse(head); err == nil {
		r.Tail, err = record.ParseShortTail(r.Record.Tail)
	}
	if err != nil {
		return r, fmt.Errorf("record of hold %s: %w", uuid, err)
	}
	return r, nil
}
