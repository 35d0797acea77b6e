package holds

import (
	"crypto/sha1" //nolint:gosec // see indexField
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Hold is a hold as its record tells it.
type Hold struct {
	ID         HoldID
	State      State
	ExpiresAt  Time
	CreatedAt  Time
	Quantity   int64
	EndedAt    Time   // of a claimed or confirmed hold the claim, of the others the end; else zero
	By         string // payment of a claimed or confirmed hold, cause of a released one
	User       string
	RequestKey string
	Names      []string // its slots, sorted
	Selection  SlotSelection
	Metadata   jsontext.Value // as it was asked, nil = none
}

// parseRecord reads the line that the scripts write; lua/prelude.lua is its twin:
//
//	state deadline_ms created_ms quantity ended_ms by user request_key slots asked metadata
//
// Words are separated by one space; no word but the last can hold one.
func parseRecord(id HoldID, line string) (Hold, error) {
	words := strings.SplitN(line, " ", 7)
	if len(words) != 7 {
		return Hold{}, fmt.Errorf("record of hold %s: %w", id, ErrCorrupt)
	}
	hold, err := parseTail(id, words[6])
	if err != nil {
		return Hold{}, err
	}
	var numbers [4]int64
	for i, word := range words[1:5] {
		if numbers[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return Hold{}, fmt.Errorf("record of hold %s: %w", id, ErrCorrupt)
		}
	}
	hold.State = State(words[0])
	hold.ExpiresAt, hold.CreatedAt = TimeFromMillis(numbers[0]), TimeFromMillis(numbers[1])
	hold.Quantity = numbers[2]
	if numbers[3] != 0 {
		hold.EndedAt = TimeFromMillis(numbers[3])
	}
	if words[5] != "-" {
		hold.By = words[5]
	}
	return hold, nil
}

// parseTail reads what never changes in a record: user request_key slots asked metadata.
func parseTail(id HoldID, tail string) (Hold, error) {
	words := strings.SplitN(tail, " ", 5)
	if len(words) != 5 {
		return Hold{}, fmt.Errorf("record of hold %s: %w", id, ErrCorrupt)
	}
	hold := Hold{ID: id, User: words[0], RequestKey: words[1], Names: strings.Split(words[2], ",")}
	var err error
	hold.Selection, hold.Metadata, err = parseEcho(words[3], words[4])
	if err != nil {
		return Hold{}, fmt.Errorf("record of hold %s: %w", id, ErrCorrupt)
	}
	return hold, nil
}

// recordTail writes what never changes in a record, see parseTail.
func recordTail(user, requestKey, slots, selection string, metadata jsontext.Value) string {
	return strings.Join([]string{user, requestKey, slots, selection, string(metadata)}, " ")
}

// indexField is index_field of lua/prelude.lua.
func indexField(user, slots string) string {
	sum := sha1.Sum([]byte(slots)) //nolint:gosec // it names a set of slots, as redis.sha1hex does; it proves nothing
	return user + " " + hex.EncodeToString(sum[:])
}

// holdJSON is what lua/prelude.lua's function of this name makes of a hold.
func holdJSON(user string, quantity int64, selection string) string {
	text := []byte(`{"user_id":`)
	text, _ = jsontext.AppendQuote(text, user) // of ASCII it is never an error
	text = strconv.AppendInt(append(text, `,"quantity":`...), quantity, 10)
	return string(append(append(text, `,"asked":`...), selection...))
}

// parseEcho reads what is only kept to be echoed.
func parseEcho(selection, metadata string) (SlotSelection, jsontext.Value, error) {
	var a SlotSelection
	if err := json.Unmarshal([]byte(selection), &a); err != nil {
		return SlotSelection{}, nil, err
	}
	if metadata == "" {
		return a, nil, nil
	}
	return a, jsontext.Value(metadata), nil
}

// data returns what every outcome that means a hold says of it.
func (h Hold) data() HoldData {
	return HoldData{
		ResourceID:    h.ID.Resource,
		HoldID:        h.ID,
		RequestKey:    h.RequestKey,
		UserID:        h.User,
		SlotSelection: h.Selection,
		Quantity:      &h.Quantity,
		Metadata:      h.Metadata,
	}
}
