package record

import (
	"crypto/sha1" //nolint:gosec // see IndexField
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrMalformed says that a line is not one that the scripts write. The error does not repeat the
// line: a corrupt line may contain any user's metadata.
var ErrMalformed = errors.New("malformed line")

// Record is the line that Redis stores of a hold. Times are in ms.
//
//	state deadline_ms created_ms quantity ended_ms by user request_key slots asked metadata
//
// Words are separated by one space; only the last may contain one. lua/prelude.lua of package
// holds reads and writes the same line.
type Record struct {
	State    string
	Deadline int64
	Created  int64
	Quantity int64
	Ended    int64  // 0 while the hold is held; of a confirming or confirmed hold the time of the claim
	By       string // payment of a confirming or confirmed hold, event id of a released one, else "-"
	Tail     string // the part that never changes, see ParseTail
}

// headWords are the words of a record before its tail.
const headWords = 6

// Parse reads a record, except for its tail. It returns ErrMalformed for any other line.
func Parse(line string) (r Record, err error) {
	words := strings.SplitN(line, " ", headWords+1)
	if len(words) != headWords+1 {
		return r, ErrMalformed
	}
	for i, to := range []*int64{&r.Deadline, &r.Created, &r.Quantity, &r.Ended} {
		if *to, err = strconv.ParseInt(words[i+1], 10, 64); err != nil {
			return r, ErrMalformed
		}
	}
	r.State, r.By, r.Tail = words[0], words[5], words[headWords]
	return r, nil
}

// String writes what Parse reads.
func (r Record) String() string {
	return fmt.Sprintf("%s %d %d %d %d %s %s", r.State, r.Deadline, r.Created, r.Quantity, r.Ended, r.By, r.Tail)
}

// Tail is the part of a record that never changes.
//
//	user request_key slots asked metadata
type Tail struct {
	User       string
	RequestKey string
	Slots      string // sorted, separated by commas
	Selection  string // JSON of the slots as the publisher requested them
	Metadata   string // JSON, "" when the request has none
}

// ParseTail reads the tail of a record. It returns ErrMalformed for any other text.
func ParseTail(text string) (Tail, error) {
	words := strings.SplitN(text, " ", 5)
	if len(words) != 5 {
		return Tail{}, ErrMalformed
	}
	return Tail{words[0], words[1], words[2], words[3], words[4]}, nil
}

// ParseShortTail reads a tail whose selection and metadata were cut off.
func ParseShortTail(text string) (Tail, error) {
	words := strings.SplitN(text, " ", 3)
	if len(words) != 3 {
		return Tail{}, ErrMalformed
	}
	return Tail{User: words[0], RequestKey: words[1], Slots: words[2]}, nil
}

// String writes what ParseTail reads.
func (t Tail) String() string {
	return strings.Join([]string{t.User, t.RequestKey, t.Slots, t.Selection, t.Metadata}, " ")
}

// IndexField is the field of a resource's users hash that contains the id of a user's live hold on
// just these slots. index_field of lua/prelude.lua of package holds returns the same.
func IndexField(user, slots string) string {
	sum := sha1.Sum([]byte(slots)) //nolint:gosec // it names a set of slots, as redis.sha1hex does; it proves nothing
	return user + " " + hex.EncodeToString(sum[:])
}
