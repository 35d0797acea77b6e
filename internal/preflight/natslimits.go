package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

const (
	nearShare    = 10        // a limit is near when less than a tenth of it is left
	roomNeeded   = 128 << 10 // bytes; the largest inbound message
	readersSpare = 4         // readers of a stream at a time: rebuilds, the removal of events, the console
)

// usage is how much of a limit of JetStream is used.
type usage struct {
	of, unit    string
	used, limit int64  // there is no limit when it is not above 0
	needed      int64  // the limit is reached when less than this is left
	near        int64  // the limit is near when less than this is left
	impact, fix string // of a limit that is reached
}

// drift reports whether the limit is reached or near.
func (u usage) drift() (drift events.ConfigDrift, is bool) {
	left := u.limit - u.used
	return events.ConfigDrift{
		Found:  fmt.Sprintf("%s has %d of at most %d %s", u.of, u.used, u.limit, u.unit),
		Impact: u.impact, Fix: u.fix, Fatal: left < u.needed,
	}, u.limit > 0 && left < max(u.needed, u.near)
}

// natsLimits checks that JetStream can store messages in the streams, and that a rebuild of Redis can create its
// consumers. It changes nothing. The limits that the user may not read are unknown. Those of a server are only known
// of those whose monitoring address is given.
func (r *report) natsLimits(ctx context.Context, l *natsProbe, ns events.Namespace, streams []*jetstream.StreamInfo) {
	if len(streams) == 0 {
		r.skipAll("no stream could be checked", NATSLimits)
		return
	}
	account, err := request(ctx, l, l.js.AccountInfo)
	if err != nil {
		account = &jetstream.AccountInfo{}
	}
	usages, ok := l.storageOfServers(), "the streams have room, and for consumers too"
	if len(usages) < len(l.servers()) {
		ok += "; the server's own limit of storage (max_file) is only visible with --nats-monitor-urls"
	}
	for _, stream := range streams {
		usages = append(usages, slices.Concat(storageOf(stream, ns, account), consumersOf(stream, ns, account))...)
	}
	drifts := l.serverFaults(streams)
	for _, u := range usages {
		if drift, is := u.drift(); is && !slices.Contains(drifts, drift) { // streams share the account
			drifts = append(drifts, drift)
		}
	}
	switch {
	case len(drifts) > 0 || err == nil:
		r.drifts(NATSLimits, ok, drifts)
	case errors.Is(err, nats.ErrPermissionViolation):
		r.unknown(NATSLimits, err.Error(), "allow the user to publish on $JS.API.INFO")
	default:
		r.unknown(NATSLimits, "limits of the account: "+err.Error(), "check again")
	}
}

const (
	refusesAll = "when no more is left JetStream refuses events and outcomes: no request is answered"
	moreRoom   = "\nif the disk allows it. HoldfastStreamFilling in docs/runbook.md says what else makes room"
)

// storageOfServers returns how much of their own limits those servers use that have a copy of a stream, and whose
// monitoring address is given.
func (l *natsProbe) storageOfServers() (usages []usage) {
	for _, m := range l.monitored {
		if m.err == nil && slices.Contains(l.servers(), m.server) {
			usages = append(usages, usage{
				"server " + m.server, "bytes of file storage", m.used, m.MaxStore, roomNeeded, m.MaxStore / nearShare, refusesAll,
				"jetstream { max_file: LARGER }\nin the configuration of that NATS server (without it: three quarters of " +
					"the disk that was free), and restart it," + moreRoom,
			})
		}
	}
	return usages
}

// serverFaults returns why servers that have a copy of a stream are not healthy, of those whose monitoring address is given.
// A server that could not write to its disk refuses all messages of the stream until it is restarted, also when there is room
// again.
func (l *natsProbe) serverFaults(streams []*jetstream.StreamInfo) (drifts []events.ConfigDrift) {
	for _, m := range l.monitored {
		if m.err != nil || !slices.Contains(l.servers(), m.server) {
			continue
		}
		for _, fault := range m.faults {
			drift := events.ConfigDrift{
				Found: "server " + m.server + " is not healthy: " + fault.Error, Impact: "it may store nothing",
				Fix: "wait while the server starts; else see its log",
			}
			stored := slices.ContainsFunc(streams, func(s *jetstream.StreamInfo) bool { // by this server
				return s.Config.Name == fault.Stream && (s.Cluster == nil || s.Config.Replicas == 1 || s.Cluster.Leader == m.server)
			})
			if stored && fault.Account == l.account && strings.Contains(fault.Error, "write error") {
				drift.Fatal, drift.Impact = true, "it stores nothing in "+fault.Stream+" until it is restarted"
				drift.Fix = "make room on the disk of that NATS server if it is full, then restart the server"
			}
			drifts = append(drifts, drift)
		}
	}
	return drifts
}

// storageOf returns how much a stream uses of its limits and of those of its account.
func storageOf(stream *jetstream.StreamInfo, ns events.Namespace, account *jetstream.AccountInfo) []usage {
	config, tier := stream.Config, events.TierOf(account, stream.Config.Replicas)
	room := int64(roomNeeded) * int64(max(1, config.Replicas)) // the account counts each copy
	ofAccount := usage{
		of: "the account", unit: "bytes of file storage", used: int64(tier.Store), limit: tier.Limits.MaxStore, needed: room,
		near:   tier.Limits.MaxStore / nearShare,
		impact: refusesAll,
		fix:    "jetstream: { max_file: LARGER }\nfor the account in the configuration of NATS, and reload it," + moreRoom,
	}
	impact, discardsNew := map[string]string{
		ns.InStream():  "when it is full it refuses events: no request is answered",
		ns.DLQStream(): "when it is full each event that needs a dead letter waits",
	}[config.Name]
	if !discardsNew {
		return []usage{ofAccount}
	}
	own := func(unit, option string, used uint64, limit, needed int64) usage {
		fix := fmt.Sprintf("nats stream edit %s --force --%s=%d", config.Name, option, 2*limit) + moreRoom
		return usage{config.Name, unit, int64(used), limit, needed, limit / nearShare, impact, fix}
	}
	return []usage{
		ofAccount, own("messages", "max-msgs", stream.State.Msgs, config.MaxMsgs, 1),
		own("bytes", "max-bytes", stream.State.Bytes, config.MaxBytes, roomNeeded),
	}
}

// consumersOf returns how many of the consumers that a stream may have it has. A server counts the limit of an account
// for each stream. A rebuild reads the streams, except that of the replays, by consumers that it creates.
func consumersOf(stream *jetstream.StreamInfo, ns events.Namespace, account *jetstream.AccountInfo) []usage {
	name := stream.Config.Name
	if name == ns.RunsStream() {
		return nil
	}
	has, limit := stream.State.Consumers, stream.Config.MaxConsumers
	if name == ns.InStream() {
		has = max(has, len(ns.Consumers())) // a worker creates those that do not exist
	}
	if ofAccount := account.Limits.MaxConsumers; ofAccount > 0 && (limit <= 0 || ofAccount < limit) {
		limit = ofAccount
	}
	return []usage{{
		of: name, unit: "consumers", used: int64(has), limit: int64(limit), needed: 1, near: readersSpare,
		impact: "each reader needs a consumer: without one, after a loss of data Redis cannot be rebuilt, no event is " +
			"processed any more, and no answered event is removed",
		fix: "raise max_consumers of the account or the stream, or remove consumers without a reader:\n" +
			"nats consumer ls " + name,
	}}
}
