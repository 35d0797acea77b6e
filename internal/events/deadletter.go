package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/net/http/httpguts"

	"holdfast/internal/holds"
)

// The headers that a dead letter adds to those of its event: why, where and when it was
// dead-lettered.
const (
	HeaderDLQReason     = dlqPrefix + "Reason"
	HeaderDLQDetail     = dlqPrefix + "Detail"
	HeaderDLQSubject    = dlqPrefix + "Subject"    // where the event was published
	HeaderDLQStreamSeq  = dlqPrefix + "Stream-Seq" // its sequence in the inbound stream
	HeaderDLQDeliveries = dlqPrefix + "Deliveries" // how often it was delivered
	HeaderDLQTime       = dlqPrefix + "Time"
	HeaderDLQWorker     = dlqPrefix + "Worker"
	HeaderDLQReplays    = dlqPrefix + "Replays" // how often the event was replayed; missing if never

	dlqPrefix = "Holdfast-Dlq-"
	detailMax = 512
)

// The headers of a dead letter with a claim check, for an event whose copy would be larger than the
// server or the stream allows. The body of such a dead letter is empty: the body and the headers of
// the event remain in the inbound stream.
const (
	HeaderClaimCheckStream = dlqPrefix + "Pointer-Stream" // always the inbound stream
	HeaderClaimCheckSeq    = dlqPrefix + "Pointer-Seq"
	HeaderClaimCheckSHA256 = dlqPrefix + "Pointer-Sha256" // of the body, in lowercase hex
)

// ClaimCheck identifies the stored event of a dead letter that has no copy of it.
type ClaimCheck struct {
	Stream string
	Seq    uint64
	SHA256 string // of the body, in lowercase hex
}

// DeadLetter is a stored event that can never be processed, with the reason. Its texts come from
// the publisher of the event, so they may contain anything.
type DeadLetter struct {
	Seq        uint64 `json:"seq"` // in the stream of dead letters
	Reason     string `json:"reason"`
	Detail     string `json:"detail"`
	Subject    string `json:"subject"`    // where the event was published
	EventID    string `json:"event_id"`   // "" when it cannot be read
	StreamSeq  uint64 `json:"stream_seq"` // in the inbound stream; 0, like Deliveries, when it cannot be read
	Deliveries uint64 `json:"deliveries"`
	Time       string `json:"time"` // as the worker wrote it

	StoredAt   time.Time    `json:"-"` // by the server's clock
	Worker     string       `json:"-"`
	Replays    uint64       `json:"-"` // how often the event was replayed before it was dead-lettered again
	Event      EventSummary `json:"-"`
	Header     nats.Header  `json:"-"` // of the event and of the dead letter
	Body       []byte       `json:"-"` // of the event, nil when only headers were read
	Size       int          `json:"-"` // of the body, in bytes
	ClaimCheck *ClaimCheck  `json:"-"` // nil when the dead letter has a copy of its event
	Missing    error        `json:"-"` // why the event of the claim check could not be read
}

// ReadDeadLetter parses a message of the stream of dead letters.
func (ns Namespace) ReadDeadLetter(m StoredMsg) *DeadLetter {
	return ns.ParseDeadLetter(&jetstream.RawStreamMsg{
		Subject: m.Subject, Sequence: m.Meta.Sequence.Stream, Header: m.Header, Data: m.Data, Time: m.Meta.Timestamp,
	})
}

// ParseDeadLetter parses a stored dead letter. Its headers may contain anything: a number that
// cannot be parsed becomes 0.
func (ns Namespace) ParseDeadLetter(m *jetstream.RawStreamMsg) *DeadLetter {
	header := m.Header
	number := func(name string) uint64 {
		n, err := strconv.ParseUint(header.Get(name), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	l := &DeadLetter{
		Seq: m.Sequence, Reason: strings.TrimPrefix(m.Subject, ns.DLQ("")), Detail: header.Get(HeaderDLQDetail),
		Subject: header.Get(HeaderDLQSubject), StreamSeq: number(HeaderDLQStreamSeq), Deliveries: number(HeaderDLQDeliveries),
		Time: header.Get(HeaderDLQTime), StoredAt: m.Time, Worker: header.Get(HeaderDLQWorker),
		Replays: number(HeaderDLQReplays),
	}
	if sum := header.Get(HeaderClaimCheckSHA256); sum != "" {
		l.ClaimCheck = &ClaimCheck{header.Get(HeaderClaimCheckStream), number(HeaderClaimCheckSeq), sum}
	}
	l.read(header, m.Data)
	if size, err := strconv.Atoi(header.Get(headerMsgSize)); err == nil && len(m.Data) == 0 {
		l.Body, l.Size = nil, size // only headers were read
	}
	return l
}

// read sets the event of a dead letter.
func (l *DeadLetter) read(header nats.Header, body []byte) {
	l.Header, l.Body, l.Size = header, body, len(body)
	l.Event = Summarize(l.Subject, header, body)
	l.EventID = l.Event.ID
}

// ErrEventGone is returned when the event of a dead letter cannot be read, or no longer exists.
var ErrEventGone = errors.New("no event")

// Resolve sets the event of a dead letter with a claim check: found is the message in the inbound
// stream, err the error of reading it. If that is not the event, it sets Missing.
func (l *DeadLetter) Resolve(found *jetstream.RawStreamMsg, err error) {
	where := fmt.Sprintf("sequence %d of stream %s", l.ClaimCheck.Seq, l.ClaimCheck.Stream)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		l.Missing = fmt.Errorf("%w: it was too large to be copied, and %s is gone",
			ErrEventGone, where)
	case err != nil:
		l.Missing = fmt.Errorf("%w: %s: %w", ErrEventGone, where, err)
	case bodySum(found.Data) != l.ClaimCheck.SHA256:
		l.Missing = fmt.Errorf("%w: it was too large to be copied, and %s is another message now: its SHA-256 differs",
			ErrEventGone, where)
	default:
		l.read(found.Header, found.Data)
	}
}

// ErrSubject is returned when an event cannot be published again on its subject.
var ErrSubject = errors.New("publish it on another subject with publisher dlq edit --subject")

// Content returns the event of a dead letter as it was published, without the headers that only
// mattered for its first publication: all that begin with Nats-, like the message id, the inbox for
// the reply, which no longer exists, those of the dead letter, and those that cannot be sent. It returns
// ErrEventGone if the event is missing. It does not check the subject, which an edited copy may replace.
func (l *DeadLetter) Content() (*nats.Msg, error) {
	if l.Missing != nil {
		return nil, l.Missing
	}
	m := nats.NewMsg(l.Subject)
	m.Data = l.Body
	for name, values := range l.Header {
		if !IsDeadLetterHeader(name) && name != HeaderReplyTo && canSendHeader(name) {
			m.Header[name] = values
		}
	}
	return m, nil
}

// Again returns the event of a dead letter as a replay publishes it: as Content does, with a header that counts its
// replays, and the time of the dead letter. A worker that dead-letters the event again copies the count. It
// returns ErrSubject if the event cannot be published on its subject.
func (l *DeadLetter) Again(ns Namespace) (*nats.Msg, error) {
	m, err := l.Content()
	if err != nil {
		return nil, err
	}
	inbound := strings.TrimSuffix(ns.AllIn(), ">")
	switch tokens := strings.Split(l.Subject, "."); {
	case !strings.HasPrefix(l.Subject, inbound):
		return nil, fmt.Errorf("the subject %q is not below %s: %w", l.Subject, inbound, ErrSubject)
	case strings.ContainsAny(l.Subject, " \t\r\n"), slices.Contains(tokens, ""), slices.Contains(tokens, "*"), slices.Contains(tokens, ">"):
		return nil, fmt.Errorf("the subject %q has white space, or a part that is empty, * or >: %w", l.Subject, ErrSubject)
	}
	m.Header.Set(HeaderDLQReplays, strconv.FormatUint(l.Replays+1, 10))
	m.Header.Set(HeaderDLQTime, l.StoredAt.UTC().Format(holds.TimeFormat))
	return m, nil
}

// replayOf returns when the dead letter of an event that is replayed was stored.
func replayOf(header nats.Header) (died time.Time, is bool) {
	died, err := time.Parse(holds.TimeFormat, header.Get(HeaderDLQTime))
	return died, err == nil && header.Get(HeaderDLQReplays) != ""
}

// IsDeadLetterHeader reports whether a header belongs to the dead letter, not to its event.
func IsDeadLetterHeader(name string) bool {
	return isOfServer(name) || strings.HasPrefix(name, dlqPrefix)
}

// isOfServer reports whether a header is meant for the server.
func isOfServer(name string) bool { return strings.HasPrefix(strings.ToLower(name), "nats-") }

// canSendHeader reports whether nats.go sends a header of this name: one that HTTP permits. The server accepts others
// too, from other clients.
func canSendHeader(name string) bool { return httpguts.ValidHeaderFieldName(name) }

// deadLetterForm says how much of the event a dead letter contains.
type deadLetterForm int

const (
	deadLetterWhole      deadLetterForm = iota // body and headers
	deadLetterClaimCheck                       // the headers, and a claim check
	deadLetterBare                             // only a claim check
)

// deadLetter returns the dead letter of an event. It contains the body and the headers of the event as far as the
// form has them, and the headers HeaderDLQ….
func (c *Consumer) deadLetter(
	ctx context.Context, d *delivery, reason, detail string, form deadLetterForm,
) (*nats.Msg, error) {
	id, err := c.deadLetterID(ctx, d)
	if err != nil {
		return nil, err
	}
	m := nats.NewMsg(c.ns.DLQ(reason))
	if hasLostHeaders(d.msg) {
		detail += " (headers left out: one of their lines cannot be parsed)"
	}
	if form != deadLetterBare {
		for name, values := range d.msg.Header {
			switch {
			case isOfServer(name):
			case canSendHeader(name):
				m.Header[name] = values
			case !strings.Contains(detail, "left out"): // else it is the detail of a larger form
				detail += fmt.Sprintf(" (header %q left out: not a name that can be sent)", name)
			}
		}
	} else if replays, err := strconv.ParseUint(d.msg.Header.Get(HeaderDLQReplays), 10, 64); err == nil {
		m.Header.Set(HeaderDLQReplays, strconv.FormatUint(replays, 10))
	}
	seq := strconv.FormatUint(d.meta.Sequence.Stream, 10)
	m.Header.Set(headerMsgID, id)
	m.Header.Set(HeaderDLQReason, reason)
	m.Header.Set(HeaderDLQDetail, OneLine(detail))
	m.Header.Set(HeaderDLQSubject, d.msg.Subject)
	m.Header.Set(HeaderDLQStreamSeq, seq)
	m.Header.Set(HeaderDLQDeliveries, strconv.FormatUint(d.meta.NumDelivered, 10))
	m.Header.Set(HeaderDLQTime, time.Now().UTC().Format(holds.TimeFormat))
	m.Header.Set(HeaderDLQWorker, c.process.worker)
	if form == deadLetterWhole {
		// An event must not look like a claim check.
		m.Header.Del(HeaderClaimCheckStream)
		m.Header.Del(HeaderClaimCheckSeq)
		m.Header.Del(HeaderClaimCheckSHA256)
		m.Data = d.msg.Data
	} else {
		m.Header.Set(HeaderClaimCheckStream, c.ns.InStream())
		m.Header.Set(HeaderClaimCheckSeq, seq)
		m.Header.Set(HeaderClaimCheckSHA256, bodySum(d.msg.Data))
	}
	return m, nil
}

// hasLostHeaders reports whether nats.go could not parse the headers of a message: then it has none of them.
func hasLostHeaders(m *nats.Msg) bool {
	return m.Header == nil && m.Size() > len(m.Subject)+len(m.Reply)+len(m.Data)
}

func bodySum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// IsTooLarge reports whether the server or the stream refuses a message because of its size, or because
// of the size of its headers (64 KiB).
func IsTooLarge(err error) bool {
	const headersExceedMaximum = 10097
	return HasErrorCode(err, headersExceedMaximum) ||
		errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum)
}

// OneLine returns text that fits a header and a terminal: printable ASCII, at most detailMax bytes.
func OneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(text) > detailMax {
		text = text[:detailMax]
	}
	return text
}
