package audit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestRun_StreamsRecreated_NoFindings deletes streams and recreates them, as an operator does after
// NATS has lost its data. The lost outcomes are inconclusive, and no finding.
func TestRun_StreamsRecreated_NoFindings(t *testing.T) {
	t.Parallel()
	for name, which := range map[string]func(events.Namespace) []string{
		"in":  func(ns events.Namespace) []string { return []string{ns.InStream()} },
		"out": func(ns events.Namespace) []string { return []string{ns.OutStream()} },
		"dlq": func(ns events.Namespace) []string { return []string{ns.DLQStream()} },
		"all": func(ns events.Namespace) []string { return []string{ns.InStream(), ns.OutStream(), ns.DLQStream()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			for _, stream := range which(s.subjects) {
				s.must(s.js.DeleteStream(t.Context(), stream))
			}
			s.must(events.Setup(t.Context(), s.js, s.subjects,
				events.Retention{HoldLifetime: s.policy.HoldLifetimeMax, AnswerTTL: memory}, zerolog.Nop()))
			if report := s.wantNoFindings(); name != "all" && len(report.Inconclusive) == 0 {
				t.Error("nothing is inconclusive")
			}
			s.wantWorking()
		})
	}
}

// TestRun_StreamsRestored_LossIsFound restores the streams from a backup. What was published since then is missing, and was
// dropped by no limit.
func TestRun_StreamsRestored_LossIsFound(t *testing.T) {
	w := newHarness(t)
	w.startWorkers(1)
	w.setInventory("room", 2, "a")
	w.request("room", "ana", time.Hour, 1, "a")
	restore := stacktest.BackupStreams(t, stacktest.Shared().NATSURL, w.subjects.InStream(), w.subjects.OutStream(), w.subjects.DLQStream())
	w.pay(w.request("room", "ben", time.Hour, 1, "a"), "p")
	w.stopWorkers()
	restore()
	w.wantFindings("answer_untold", "end_untold", "never_granted")
}

// TestRun_OnlyInboundRestored_NoFindings restores the inbound stream alone. New events have the sequences of those that it
// lacks, and dead letters and outcomes of these are no finding.
func TestRun_OnlyInboundRestored_NoFindings(t *testing.T) {
	w := newHarness(t)
	w.startWorkers(1)
	w.setInventory("room", 2, "a")
	restore := stacktest.BackupStreams(t, stacktest.Shared().NATSURL, w.subjects.InStream())
	w.request("room", "ana", time.Hour, 1, "a")
	w.stopWorkers()
	restore()
	w.wantNoFindings()
}

// TestRun_OldMessagesDropped_Inconclusive drops the older part of each stream, as retention does.
// What cannot be checked any more is inconclusive, and no finding.
func TestRun_OldMessagesDropped_Inconclusive(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"in", "out", "both", "all of out"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			purge := func(stream string, upTo int) {
				found, err := s.js.Stream(t.Context(), stream)
				s.must(err)
				info, err := found.Info(t.Context())
				s.must(err)
				s.must(found.Purge(t.Context(), jetstream.WithPurgeSequence(info.State.LastSeq+uint64(upTo))))
			}
			if name == "in" || name == "both" {
				purge(s.subjects.InStream(), -4)
			}
			switch name {
			case "out", "both":
				purge(s.subjects.OutStream(), -4)
			case "all of out":
				purge(s.subjects.OutStream(), 1)
			}
			report := s.wantNoFindings()
			if len(report.Inconclusive) == 0 {
				t.Errorf("nothing is inconclusive: %+v", report)
			}
			for stream, since := range report.StreamStarts {
				gone := stream == s.subjects.InStream() && (name == "in" || name == "both") ||
					stream == s.subjects.OutStream() && name != "in"
				if since.Whole == gone {
					t.Errorf("%s since %+v", stream, since)
				}
			}
			s.wantWorking()
		})
	}
}

// TestRun_EndDroppedBeforeRepeatedAnswer_Inconclusive drops the creation and the end of a hold that Redis has forgotten,
// and keeps the answer to a request that was repeated after that end.
func TestRun_EndDroppedBeforeRepeatedAnswer_Inconclusive(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.startWorkers(1)
	w.setInventory("room", 1, "a")
	hold := w.request("room", "ana", time.Second, 1, "a")
	w.publish(events.BookingCancelled, "room", events.BookingCancelledData{HoldID: hold})
	if again := w.request("room", "ana", time.Second, 1, "a"); again != hold {
		t.Fatalf("the same request got %q after %q", again, hold)
	}
	w.stopWorkers()
	repeated := w.redis.Time(t.Context()).Val()
	stacktest.Eventually(t, "the time in which a sweep ends the hold", func() bool {
		return w.redis.Time(t.Context()).Val().Sub(repeated) > 4*time.Second
	})
	w.redis.Del(t.Context(), append(w.redis.Keys(t.Context(), w.key("room", "*")).Val(), w.agenda("room"))...)
	if report := w.wantNoFindings(); len(report.Inconclusive) != 0 {
		t.Errorf("inconclusive: %v", report.Inconclusive)
	}
	out, err := w.js.Stream(t.Context(), w.subjects.OutStream())
	w.must(err)
	w.must(out.Purge(t.Context(), jetstream.WithPurgeKeep(1)))
	if text := strings.Join(w.wantNoFindings().Inconclusive, "\n"); !strings.Contains(text,
		"holds granted before the outbound stream begins, whose ends may have been dropped: 1") {
		t.Errorf("inconclusive:\n%s", text)
	}
}

// TestRun_DeadLettersRemoved_NoFindings discards dead letters, which is no finding. It is one if
// more events lack a dead letter than were removed.
func TestRun_DeadLettersRemoved_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	deadLetters, err := s.client.DeadLetters(t.Context())
	s.must(err)
	s.must(deadLetters.Remove(t.Context(), 1))
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive,
		"\n"); text != "events that cannot be processed and have no dead letter, while as many were removed: 1" {
		t.Errorf("inconclusive:\n%s", text)
	}
	m := s.message(events.BookingRequested, "hall", "no object, again")
	s.answerByHand(m, "", "", nil)
	s.wantFindings("no_outcome", "no_outcome")
}

// TestRun_DeadLetterReplayed_NoFindings dead-letters an event and replays the dead letter. The
// event is answered, with the dead letter removed or kept, or is dead-lettered again.
func TestRun_DeadLetterReplayed_NoFindings(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"answered, dead letter removed", "answered, dead letter kept", "dead again",
		"dead again, first dead letter removed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			m := s.message(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: s.other})
			die := func() {
				s.answerByHand(m, "", "", nil)
				s.publishDeadLetter(s.lastInbound(), m.Subject, events.ReasonPoison)
			}
			die()
			s.wantNoFindings()
			again := nats.NewMsg(m.Subject)
			again.Data, again.Header = m.Data,
				nats.Header{"Content-Type": m.Header["Content-Type"], "Nats-Msg-Id": {"a replay"}}
			m = again
			if strings.HasPrefix(name, "dead") {
				die()
			} else {
				s.startWorkers(1)
				if a, err := s.client.Request(stacktest.WaitContext(t), m); err != nil ||
					a.Envelope.Type != events.Type(holds.EventHoldReleased) {
					t.Errorf("the replay was answered %+v, %v", a, err)
				}
				s.stopWorkers()
			}
			if strings.HasSuffix(name, "removed") {
				deadLetters, err := s.client.DeadLetters(t.Context())
				s.must(err)
				s.must(deadLetters.Remove(t.Context(), 2)) // sequence 1 belongs to the scene
			}
			s.wantNoFindings()
		})
	}
}

// TestRun_Duplicates_CountAsOne publishes an event twice and stores an outcome twice. Both count as
// one.
func TestRun_Duplicates_CountAsOne(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.startWorkers(1)
	m := s.message(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: s.other})
	for range 2 {
		_, err := s.client.Request(stacktest.WaitContext(t), m)
		s.must(err)
		m.Header.Del("Nats-Msg-Id") // or the stream would drop the duplicate
	}
	e := s.outcomeOf(holds.EventHoldReleased, s.other)
	s.storedAs(e.ID, holds.EventHoldReleased, "hall", e.Subject, e.CausationID, e.Data)
	s.stopWorkers()
	s.wantNoFindings()
}

// TestRun_ConsumerMissing_IsReported deletes a consumer. Its events are pending, and the report
// says so.
func TestRun_ConsumerMissing_IsReported(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.must(s.js.DeleteConsumer(t.Context(), s.subjects.InStream(), events.ConsumerPayments))
	s.must(s.client.Publish(t.Context(),
		s.message(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: s.other, PaymentID: "p"})))
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.HasPrefix(text, "consumer payments of ") ||
		report.Pending.Events != 1 {
		t.Errorf("inconclusive:\n%s\npending %+v", text, report.Pending)
	}
}

// TestRun_MessagesArriveLate_AreAwaited delays messages of a stream after the server has sent all
// of them and has reported that there are no more. The audit waits for them.
func TestRun_MessagesArriveLate_AreAwaited(t *testing.T) {
	t.Parallel()
	const number = 300
	w := newHarness(t)
	w.startWorkers(1)
	w.setInventory("hot", number, "a")
	w.placeMany("hot", number, []string{"a"})
	w.awaitOutcomes(holds.EventHoldCreated, number)
	w.stopWorkers()
	late := &stacktest.StallingDialer{Pause: 2 * time.Second}
	nc, err := events.Connect(stacktest.Shared().NATSURL, t.Name(), t.Logf, nats.SetCustomDialer(late))
	w.must(err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	w.must(err)
	w.backends.JetStream = js
	for _, bytes := range []int64{number * 300, number * 1000} { // among the events, and among the outcomes
		late.PauseAfter(bytes)
		if checked := w.wantNoFindings().Stats; checked.Events != number+1 || checked.Outcomes != number+1 {
			t.Errorf("paused after %d bytes, checked %+v", bytes, checked)
		}
	}
}
