package audit

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"holdfast/internal/record"
)

// id is the 16 bytes of a UUID: of a hold, or of an outcome.
type id [16]byte

func (i id) String() string { return hex.EncodeToString(i[:]) }

// unixMilli returns when the id of a hold was created, in ms by the clock of its worker. The id is
// a UUIDv7.
func (i id) unixMilli() (ms int64) {
	for _, b := range i[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms
}

// parseID parses 32 hex digits.
func parseID(text string) (i id, ok bool) {
	if len(text) != 2*len(i) {
		return id{}, false
	}
	_, err := hex.Decode(i[:], []byte(text))
	return i, err == nil
}

// holdRecord is the record of a hold in Redis.
type holdRecord struct {
	id         id
	late       bool // it has the slots that a late payment took again
	state      string
	deadline   int64 // ms, as all times here
	created    int64
	ended      int64 // of a claimed or confirmed hold, when it was claimed
	quantity   int64
	by         string
	user       string
	key        string
	slots      string // sorted, with commas
	remembered bool   // it has a tombstone
	over       int64  // until when it is remembered, 0 without a tombstone
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
		return r.ended
	}
	return r.created
}

func (r *holdRecord) live() bool { return r.state == "held" || r.state == "confirming" }

// parseRecord parses a record as the scripts return it. head is:
//
//	state deadline_ms created_ms quantity ended_ms by user request_key slots
func parseRecord(name, head, place string) (r holdRecord, err error) {
	uuid, late := strings.CutPrefix(name, "late:")
	var ok bool
	if r.id, ok = parseID(uuid); !ok {
		return r, fmt.Errorf("record %q: not the id of a hold", name)
	}
	stored, err := record.Parse(head)
	if err != nil {
		return r, fmt.Errorf("record of hold %s: %w", uuid, err)
	}
	tail, err := record.ParseShortTail(stored.Tail)
	if err != nil {
		return r, fmt.Errorf("record of hold %s: %w", uuid, err)
	}
	r.late, r.state, r.by, r.user, r.key, r.slots = late, stored.State, stored.By, tail.User, tail.RequestKey, tail.Slots
	r.deadline, r.created, r.ended, r.quantity = stored.Deadline, stored.Created, stored.Ended, stored.Quantity
	if over, is := strings.CutPrefix(place, "t"); is {
		r.remembered = true
		if r.over, err = strconv.ParseInt(over, 10, 64); err != nil {
			return r, fmt.Errorf("record of hold %s: %w", uuid, err)
		}
	}
	return r, nil
}
