package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/contract"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// TestCatalogue_EveryInput_HasItsOutcome publishes every input of the catalogue to two real
// workers, each beside a valid request. Every valid request is granted, every input has the
// expected outcome, and Redis and Postgres contain only what the valid requests need.
func TestCatalogue_EveryInput_HasItsOutcome(t *testing.T) {
	t.Parallel()
	inputs, err := contract.ReadInputs("../../internal/events/testdata/catalogue", time.Now())
	stacktest.Must(t, err)
	s := newHarness(t)
	workers := []*process{s.startWorker(), s.startWorker()}
	s.setInventory("good", holds.SlotSelection{}, int64(len(inputs)))
	dead := 0
	var wanted []string // ids of the events that need an outcome
	for i, in := range inputs {
		s.send(in)
		if in.IsDeadLetter() {
			dead++
		} else {
			wanted = append(wanted, s.idOf(in))
		}
		request := bookingData("good", fmt.Sprintf("u%d", i), fmt.Sprintf("k%d", i), holds.SlotSelection{}, 600)
		if i%2 == 0 {
			request.Metadata = []byte(`{"name":"\u0000 ` + "\u202e" + `"}`)
		}
		s.publish(events.BookingRequested, "good", request)
	}
	s.await("an end of each", func(outcomes []events.Envelope, deadLetters []nats.Header) bool {
		return len(outcomes) == 1+len(inputs)+len(wanted) && len(deadLetters) == dead
	})
	for _, w := range workers {
		select {
		case <-w.exited:
			t.Fatalf("a worker exited: %v", w.err)
		default:
		}
	}
	granted := s.ofType(holds.EventHoldCreated)
	if len(granted) != len(inputs) {
		t.Errorf("%d valid requests were granted, want %d", len(granted), len(inputs))
	}
	s.checkOutcomes(inputs)
	s.checkRemaining(inputs, len(inputs), 0)

	// The granted holds are like any other: they can be paid and released.
	paid, released := granted[0], granted[1]
	s.wantAnswer(s.pay(paid.Subject, "p"), holds.EventHoldConfirmed)
	s.wantAnswer(s.publish(events.BookingCancelled, "good", events.BookingCancelledData{HoldID: released.Subject}), holds.EventHoldReleased)
	s.checkRemaining(inputs, len(inputs)-2, 1)
}

// nameHeader names the input of a dead letter.
const nameHeader = "X-Name"

// send publishes an input unchanged.
func (s *harness) send(in contract.Input) {
	s.t.Helper()
	m := nats.NewMsg(s.namespace + strings.TrimPrefix(in.Subject, "holdfast"))
	maps.Copy(m.Header, nats.Header(in.Header))
	m.Header[nameHeader] = []string{in.Name}
	m.Header["nats-custom"] = []string{"gone"}
	m.Header["traceparent"] = []string{traceParent}
	m.Data = in.Body
	if _, err := s.js.PublishMsg(context.Background(), m); err != nil {
		s.t.Fatalf("%s: %v", in.Name, err)
	}
}

const traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// idOf returns the event id of a valid input.
func (s *harness) idOf(in contract.Input) string {
	s.t.Helper()
	decoded, err := events.Namespace("holdfast").Decode(in.Subject, in.Header, in.Body, time.Now())
	if err != nil {
		s.t.Fatalf("%s: %v", in.Name, err)
	}
	return decoded.ID
}

// checkOutcomes compares the outcomes of inputs with the expected ones.
func (s *harness) checkOutcomes(inputs []contract.Input) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	stream, err := s.js.Stream(s.t.Context(), s.subjects.InStream())
	stacktest.Must(s.t, err)
	inbound := s.subjects.InStream() + "-" + strconv.FormatInt(stream.CachedInfo().Created.UnixMilli(), 36) + "-"
	deadLetters := make(map[string]nats.Header)
	for _, h := range s.deadLetters {
		deadLetters[h.Get(nameHeader)] = h
	}
	for _, in := range inputs {
		if !in.IsDeadLetter() {
			its := answers(s.outcomes, s.idOf(in))
			if len(its) != 1 {
				s.t.Errorf("%s has %d outcomes", in.Name, len(its))
				continue
			}
			why := decoded[struct {
				Reason string `json:"reason"`
				Field  string `json:"field"`
			}](s.t, its[0])
			if got := strings.TrimSpace(why.Reason + " " + why.Field); its[0].Type != events.Type(in.Want) || got != in.Detail {
				s.t.Errorf("%s: answered with %s %s, want %s %s", in.Name, its[0].Type, got, in.Want, in.Detail)
			}
			continue
		}
		h, found := deadLetters[in.Name]
		if !found {
			s.t.Errorf("%s was not dead-lettered", in.Name)
			continue
		}
		if h.Get("Holdfast-Dlq-Reason") != in.Want || !strings.HasPrefix(h.Get("Holdfast-Dlq-Detail"), in.Detail) ||
			h.Get("Holdfast-Dlq-Subject") != s.namespace+strings.TrimPrefix(in.Subject, "holdfast") ||
			h.Get("Holdfast-Dlq-Deliveries") != "1" || h.Get("Holdfast-Dlq-Worker") == "" ||
			h.Get("Nats-Msg-Id") != inbound+h.Get("Holdfast-Dlq-Stream-Seq") {
			s.t.Errorf("%s: want %s: %s ..., got %v", in.Name, in.Want, in.Detail, h)
		}
		if _, err := time.Parse(holds.TimeFormat, h.Get("Holdfast-Dlq-Time")); err != nil {
			s.t.Errorf("%s: %v", in.Name, err)
		}
		for name, values := range in.Header {
			if !slices.Equal(h[name], values) {
				s.t.Errorf("%s: its header %s was %q, is %q", in.Name, name, values, h[name])
			}
		}
		if h.Get("traceparent") != traceParent || h["nats-custom"] != nil {
			s.t.Errorf("%s: headers %v", in.Name, h)
		}
	}
}

// checkRemaining checks that only the holds and reservations of the resource good are counted, and
// checks the streams.
func (s *harness) checkRemaining(inputs []contract.Input, held, reserved int) {
	s.t.Helper()
	keys, err := s.redis.Keys(s.t.Context(), s.namespace+":*").Result()
	stacktest.Must(s.t, err)
	ofPartition := []string{"epoch", "primary", "applied", "marking", "fence", "agenda", "format"}
	good := record.Partition("good")
	for _, key := range keys {
		rest := strings.TrimPrefix(key, s.namespace+":")
		_, rest, _ = strings.Cut(rest, "}:")
		resource, name, ofResource := strings.Cut(rest, ":")
		switch {
		case resource == "good" && strings.HasPrefix(key, fmt.Sprintf("%s:{%d}:", s.namespace, good)):
		case ofResource && (name == "rev" || strings.HasPrefix(name, "request:")): // an answer is kept
		case !ofResource && slices.Contains(ofPartition, rest):
		case ofResource && name == "waited_for" && s.redis.PTTL(s.t.Context(), key).Val() > 0: // it expires
		default:
			s.t.Errorf("unexpected key in Redis: %s", key)
		}
	}
	if counts := s.counts("good"); len(counts) != 1 || counts["stock"] != fmt.Sprint(held) {
		s.t.Errorf("counts of resource good: %v, want %d", counts, held)
	}

	payments := reserved
	for _, in := range inputs {
		if !in.IsDeadLetter() && strings.Contains(in.Subject, "."+events.PaymentConfirmed+".") {
			payments++ // each payment has a permanent answer
		}
	}
	config, err := pgx.ParseConfig(s.urls.postgres)
	stacktest.Must(s.t, err)
	config.RuntimeParams["search_path"] = s.namespace
	db, err := pgx.ConnectConfig(s.t.Context(), config)
	stacktest.Must(s.t, err)
	defer func() { _ = db.Close(context.Background()) }()
	for query, want := range map[string]int{
		"select coalesce(sum(reserved), 0) from inventory":                           reserved,
		"select count(*) from inventory where resource_id not in ('good','stocked')": 0,
		"select count(*) from reservations":                                          reserved,
		"select count(*) from payments":                                              payments,
	} {
		var got int
		if err := db.QueryRow(s.t.Context(), query).Scan(&got); err != nil || got != want {
			s.t.Errorf("%s: %d %v, want %d", query, got, err, want)
		}
	}
	s.checkStreams(inputs)
}

// checkStreams reads the streams: each dead letter has the body of its input, byte for byte, and
// each outcome has the trace of its input.
func (s *harness) checkStreams(inputs []contract.Input) {
	s.t.Helper()
	bodies, traced := make(map[string][]byte), make(map[string]struct{})
	for _, in := range inputs {
		bodies[in.Name] = in.Body
		if !in.IsDeadLetter() {
			traced[s.idOf(in)] = struct{}{}
		}
	}
	s.eachStored(s.subjects.DLQStream(), func(m *jetstream.RawStreamMsg) {
		if name := m.Header.Get(nameHeader); !bytes.Equal(m.Data, bodies[name]) {
			s.t.Errorf("%s: the body of its dead letter differs", name)
		}
		if m.Subject != s.subjects.DLQ(m.Header.Get("Holdfast-Dlq-Reason")) {
			s.t.Errorf("dead letter %d is on %s", m.Sequence, m.Subject)
		}
	})
	s.eachStored(s.subjects.OutStream(), func(m *jetstream.RawStreamMsg) {
		var e events.Envelope
		stacktest.Must(s.t, json.Unmarshal(m.Data, &e))
		if _, want := traced[e.CausationID]; want != (m.Header.Get("traceparent") == traceParent) {
			s.t.Errorf("the outcome of %s has the headers %v", e.CausationID, m.Header)
		}
	})
}

// eachStored calls read for each message of a stream, from the first to the last.
func (s *harness) eachStored(name string, read func(*jetstream.RawStreamMsg)) {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), name)
	stacktest.Must(s.t, err)
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(s.t.Context(), seq)
		stacktest.Must(s.t, err)
		read(m)
	}
}
