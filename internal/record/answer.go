package record

import (
	"fmt"
	"strconv"
	"strings"
)

// Answer is the line that Redis remembers under a request key. place.lua of package holds writes
// it too.
//
//	word fingerprint cause at_ms detail asked metadata
type Answer struct {
	Word        string // created, cancelled, or the reason of a rejection
	Fingerprint string // of the request's content
	EventID     string // of the event that was answered first
	At          int64  // ms
	Detail      string // see Created, Shortage; for already_holding the UUID of the hold; else "-"
	Selection   string // JSON of the slots as requested; "-" when the detail names a hold or the word is cancelled
	Metadata    string // JSON, "" when there is none
}

const answerWords = 7

// ParseAnswer reads an answer. It returns ErrMalformed for any other line.
func ParseAnswer(line string) (a Answer, err error) {
	words := strings.SplitN(line, " ", answerWords)
	if len(words) != answerWords {
		return a, ErrMalformed
	}
	a = Answer{
		Word: words[0], Fingerprint: words[1], EventID: words[2],
		Detail: words[4], Selection: words[5], Metadata: words[6],
	}
	if a.At, err = strconv.ParseInt(words[3], 10, 64); err != nil {
		return a, ErrMalformed
	}
	return a, nil
}

// String writes what ParseAnswer reads.
func (a Answer) String() string {
	return fmt.Sprintf("%s %s %s %d %s %s %s", a.Word, a.Fingerprint, a.EventID, a.At, a.Detail, a.Selection, a.Metadata)
}

// Created is the detail of the answer "created": uuid:deadline_ms.
type Created struct {
	UUID     string
	Deadline int64 // ms
}

// ParseCreated reads the detail of the answer "created". It returns ErrMalformed for any other text.
func ParseCreated(detail string) (c Created, err error) {
	uuid, deadline, _ := strings.Cut(detail, ":")
	if c.Deadline, err = strconv.ParseInt(deadline, 10, 64); err != nil {
		return c, ErrMalformed
	}
	c.UUID = uuid
	return c, nil
}

// String writes what ParseCreated reads.
func (c Created) String() string { return c.UUID + ":" + strconv.FormatInt(c.Deadline, 10) }

// Shortage is the detail of the answer "sold_out": retry_at_ms|slot:capacity:reserved:held,...
type Shortage struct {
	RetryAt int64 // ms; 0, written "-", when no deadline could help
	Slots   []SlotCounts
}

// SlotCounts contains the numbers of one slot: the capacity, the quantity of all reservations, and
// the quantity of all live holds.
type SlotCounts struct {
	Slot     string `json:"slot"`
	Capacity int64  `json:"capacity"`
	Reserved int64  `json:"reserved"`
	Held     int64  `json:"held"`
}

// ParseShortage reads the detail of the answer "sold_out". It returns ErrMalformed for any other text.
func ParseShortage(detail string) (s Shortage, err error) {
	retryAt, rows, _ := strings.Cut(detail, "|")
	if retryAt != "-" {
		if s.RetryAt, err = strconv.ParseInt(retryAt, 10, 64); err != nil {
			return s, ErrMalformed
		}
	}
	for row := range strings.SplitSeq(rows, ",") {
		words := strings.Split(row, ":")
		if len(words) != 4 {
			return s, ErrMalformed
		}
		slot := SlotCounts{Slot: words[0]}
		for i, to := range []*int64{&slot.Capacity, &slot.Reserved, &slot.Held} {
			if *to, err = strconv.ParseInt(words[i+1], 10, 64); err != nil {
				return s, ErrMalformed
			}
		}
		s.Slots = append(s.Slots, slot)
	}
	return s, nil
}

// String writes what ParseShortage reads.
func (s Shortage) String() string {
	retryAt := "-"
	if s.RetryAt != 0 {
		retryAt = strconv.FormatInt(s.RetryAt, 10)
	}
	rows := make([]string, len(s.Slots))
	for i, row := range s.Slots {
		rows[i] = fmt.Sprintf("%s:%d:%d:%d", row.Slot, row.Capacity, row.Reserved, row.Held)
	}
	return retryAt + "|" + strings.Join(rows, ",")
}

// ExtensionAnswer returns the line that Redis remembers under extension:<event id>: word at_ms
// deadline_ms. extend.lua of package holds reads and writes it. Times are in ms.
func ExtensionAnswer(word string, at, deadline int64) string {
	return fmt.Sprintf("%s %d %d", word, at, deadline)
}
