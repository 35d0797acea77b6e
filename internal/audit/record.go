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

// unixMilli is when the id of a hold was made, in ms of the clock of the worker that made it: the id is a UUIDv7.
func (i id) unixMilli() (ms int64) {
	for _, b := range i[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms
}

// parseID reads 32 hex digits.
func parseID(text string) (i id, ok bool) {
	if len(text) != 2*len(i) {
		return id{}, false
	}
	_, err := hex.Decode(i[:], []byte(text))
	return i, err == nil
}

// holdRecord is what Redis remembers of a hold.
type holdRecord struct {
	id         id
	late       bool // it is what a late payment has taken again, not the hold itself
	state      string
	deadline   int64 // ms, as all times here
	created    int64
	ended      int64 // of a claimed or confirmed hold the claim
	quantity   int64
	by         string
	user       string
	key        string
	slots      string // sorted, with commas
	toAnnounce bool   // hold.expired is to be stored still
	remembered bool   // as a tombstone
	over       int64  // until when it is remembered, 0 = it is not
}

// name is the name of the record in Redis.
func (r *holdRecord) name() string {
	if r.late {
		return "late:" + r.id.String()
	}
	return r.id.String()
}

func (r *holdRecord) live() bool { return r.state == "held" || r.state == "confirming" }

// parseRecord reads a record as the scripts return it:
//
//	state deadline_ms created_ms quantity ended_ms by user request_key slots
func parseRecord(name, head, place string) (r holdRecord, err error) {
	uuid, late := strings.CutPrefix(name, "late:")
	var ok bool
	if r.id, ok = parseID(uuid); !ok {
		return r, fmt.Errorf("the record %q is not a hold's", name)
	}
	stored, err := record.Parse(head)
	if err != nil {
		return r, fmt.Errorf("the record of hold %s: %w", uuid, err)
	}
	tail, err := record.ParseShortTail(stored.Tail)
	if err != nil {
		return r, fmt.Errorf("the record of hold %s: %w", uuid, err)
	}
	r.late, r.state, r.by, r.user, r.key, r.slots = late, stored.State, stored.By, tail.User, tail.RequestKey, tail.Slots
	r.deadline, r.created, r.ended, r.quantity = stored.Deadline, stored.Created, stored.Ended, stored.Quantity
	r.toAnnounce = place == "d"
	if over, is := strings.CutPrefix(place, "t"); is {
		r.remembered = true
		if r.over, err = strconv.ParseInt(over, 10, 64); err != nil {
			return r, fmt.Errorf("the record of hold %s: %w", uuid, err)
		}
	}
	return r, nil
}
