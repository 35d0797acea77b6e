package main

import (
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"
)

// dlqHeader begins the names of the headers that tell why, where and when an event died.
const dlqHeader = "Holdfast-Dlq-"

// deadLetter is what is told of an event that can never be processed.
type deadLetter struct {
	Seq        uint64 `json:"seq"` // in the stream of dead letters
	Reason     string `json:"reason"`
	Detail     string `json:"detail"`
	Subject    string `json:"subject"`    // where it was published
	EventID    string `json:"event_id"`   // "" when it cannot be read
	StreamSeq  uint64 `json:"stream_seq"` // in the inbound stream
	Deliveries uint64 `json:"deliveries"`
	Time       string `json:"time"`

	meta *jetstream.MsgMetadata
}

// readDeadLetter reads a dead letter. Its headers may say anything: numbers that are none are 0.
func readDeadLetter(reason string, meta *jetstream.MsgMetadata, m jetstream.Msg) deadLetter {
	header := m.Headers()
	counted := func(name string) uint64 {
		n, err := strconv.ParseUint(header.Get(dlqHeader+name), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	letter := deadLetter{
		Seq: meta.Sequence.Stream, Reason: reason,
		Detail:    header.Get(dlqHeader + "Detail"),
		Subject:   header.Get(dlqHeader + "Subject"),
		EventID:   header.Get("ce-id"),
		StreamSeq: counted("Stream-Seq"), Deliveries: counted("Deliveries"),
		Time: header.Get(dlqHeader + "Time"),
		meta: meta,
	}
	var event struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(m.Data(), &event); err == nil && event.ID != "" {
		letter.EventID = event.ID
	}
	return letter
}

// printDeadLetter prints a dead letter on one line.
func (p *program) printDeadLetter(d deadLetter) error {
	if p.json() {
		encoded, err := json.Marshal(d, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return fmt.Errorf("encode dead letter %d: %w", d.Seq, err)
		}
		return p.printJSON(encoded)
	}
	fields := []string{
		field("reason", d.Reason), field("detail", d.Detail), field("event_id", d.EventID),
		field("seq", strconv.FormatUint(d.Seq, 10)),
	}
	return p.print(line(d.meta, "dead-lettered", d.Subject, fields))
}
