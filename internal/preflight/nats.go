package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

// The requirements on NATS.
const (
	natsMin       = "2.10"  // the first version with several filters for a consumer
	payloadNeeded = 1 << 20 // bytes; a dead letter is its event with additional headers
	monitorLimit  = 4 << 20 // bytes of an answer of a monitoring address
)

// natsProbe is a connection that checks NATS.
type natsProbe struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	serving []string // names of the connected server, and of those that have a copy of a stream

	account   string // of the user, "" when it is unknown
	monitored []monitored

	electionsEnd time.Time // see electionWithin; zero before the first stream was read
}

// servers returns the names of serving, each once.
func (l *natsProbe) servers() []string {
	return slices.Compact(slices.Sorted(slices.Values(l.serving)))
}

// request returns the answer to question, which sends a request. NATS does not answer a request without permission:
// request then returns the *events.PermissionError at once.
func request[V any](ctx context.Context, l *natsProbe, question func(context.Context) (V, error)) (V, error) {
	ctx, restore := events.UntilRefused(ctx, l.nc)
	defer restore()
	answer, err := question(ctx)
	return answer, events.Refused(ctx, err)
}

// nats checks NATS. It returns its clock.
func (r *report) nats(ctx context.Context, t Target) clock {
	const reachable, natsPayload = "nats.reachable", "nats.max_payload"
	l := &natsProbe{}
	names := []string{natsLink, "nats.version", natsPayload}
	for _, config := range events.Namespace(t.Namespace).Streams(t.Retention) {
		names = append(names, "nats.stream."+config.Name)
	}
	names = append(names, NATSReplicas, "nats.consumers", NATSLimits, NATSWorkers, NATSSync, NATSAnswering, NATSReading,
		NATSTrimming, NATSConsole, NATSPrivileges)
	unreachable := func(err error) clock {
		r.fail(reachable, err.Error(), "a worker can neither read nor publish events",
			"start it with JetStream, or correct its URL; where it refuses the connection, correct the login, or raise the limit")
		r.skipAll(reachable+" failed", names...)
		return clock{of: "nats", err: errUnreachable}
	}
	var err error
	options := append(slices.Clone(t.NATSOptions), nats.Timeout(within/2))
	l.nc, err = events.ConnectUntil(ctx, t.NATSURL, "holdfast preflight "+t.Namespace, func(string, ...any) {}, options...)
	if err != nil {
		return unreachable(err)
	}
	defer l.nc.Close()
	if l.js, err = jetstream.New(l.nc); err != nil {
		return unreachable(err)
	}
	r.ok(reachable, fmt.Sprintf("%s %s", l.nc.ConnectedAddr(), l.nc.ConnectedServerName()))
	r.link(natsLink, linkOfNATS(l.nc), "use tls://, or --nats-ca-file, and a login")
	r.version("nats.version", "NATS", l.nc.ConnectedServerVersion(), natsMin, "its consumers support only one filter",
		"use NATS 2.10 or newer (tested with 2.15)")
	_ = l.nc.FlushTimeout(within / 5) // with it comes the limit of the account, if there is one
	if payload := fmt.Sprintf("%d bytes", l.nc.MaxPayload()); l.nc.MaxPayload() < payloadNeeded {
		r.warn(natsPayload, payload,
			"a dead letter of a large event does not fit: it only refers to the event, which the inbound stream must then keep",
			"max_payload: 1MB\nin the configuration of NATS")
	} else {
		r.ok(natsPayload, payload)
	}
	l.serving = []string{l.nc.ConnectedServerName()}
	l.monitored = readMonitors(ctx, t.Monitors)
	user, err := l.user(ctx)
	if err == nil {
		l.account = user.Data.Account
	}
	r.natsStreams(ctx, l, t)
	r.natsWorkers(ctx, l, t)
	r.natsSync(l)
	r.natsAnswering(user, err, events.Namespace(t.Namespace))
	r.natsReading(user, err, events.Namespace(t.Namespace))
	r.natsTrimming(user, err, events.Namespace(t.Namespace))
	r.natsConsole(user, err, t)
	r.natsPrivileges(user, err, t)
	return readClock(ctx, "nats", func(ctx context.Context) (time.Time, error) {
		user, err := l.user(ctx)
		return user.Server.Time, err
	})
}

// natsStreams checks the streams, and the consumers of the inbound stream.
func (r *report) natsStreams(ctx context.Context, l *natsProbe, t Target) {
	ns := events.Namespace(t.Namespace)
	want, created := 3, 1
	if set := t.Retention.Replicas; set > 0 {
		want, created = set, set
	} else if l.nc.ConnectedClusterName() != "" {
		created = want
	}
	var copies []streamCopies
	var infos []*jetstream.StreamInfo
	there := false
	for _, wanted := range ns.Streams(t.Retention) {
		name := "nats.stream." + wanted.Name
		found, err := l.stream(ctx, wanted.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound) && t.Migrates:
			r.ok(name, "it does not exist yet; the worker creates it")
			copies = append(copies, streamCopies{stream: wanted.Name, number: created})
			continue
		case errors.Is(err, jetstream.ErrStreamNotFound):
			r.fail(name, "it does not exist", "with --no-migrate the worker does not create it", "worker migrate")
			continue
		case errors.Is(err, nats.ErrPermissionViolation):
			r.unknown(name, err.Error(), "allow the user to publish on $JS.API.STREAM.INFO."+wanted.Name)
			continue
		case err != nil:
			r.fail(name, err.Error(), "JetStream does not answer correctly", fixStream(err))
			continue
		}
		l.addServing(found.Cluster)
		copies = append(copies, streamCopies{wanted.Name, found.Config.Replicas, true, offline(found)})
		infos = append(infos, found)
		there = there || wanted.Name == ns.InStream() && hasLeader(found)
		drifts := ns.DiffStream(found.Config, wanted, t.Retention)
		if t.Migrates {
			drifts = slices.DeleteFunc(drifts, func(f events.ConfigDrift) bool { return f.FixedBySetup })
		}
		if wanted.Name == ns.OutStream() {
			drifts = append(drifts, droppedEarly(found, t.Retention)...)
		}
		drifts = append(drifts, noLeader(found, wanted.Name != ns.RunsStream())...)
		if wanted.AllowAtomicPublish && events.KnowsBatches(l.nc) {
			drifts = append(drifts, noBatches(found)...)
		}
		ok := fmt.Sprintf("file storage, limits retention, discards %s messages; it has %d messages",
			events.DiscardName(found.Config.Discard), found.State.Msgs)
		r.drifts(name, ok, drifts)
	}
	r.natsReplicas(copies, want, l.nc.ConnectedClusterName() != "")
	if !there {
		r.skipAll("the inbound stream could not be checked", "nats.consumers")
	} else {
		r.natsConsumers(ctx, l, t, ns)
	}
	r.natsLimits(ctx, l, ns, infos)
}

// fixStream is how to repair what an error in place of a stream shows.
func fixStream(err error) string {
	const unsupported = 10194 // the stream has a setting that the server does not know
	if events.HasErrorCode(err, unsupported) {
		return "a newer NATS has changed the stream: finish the upgrade of all servers, there is no way back"
	}
	return "make sure that JetStream is enabled for this account and that the stream has a leader"
}

// electionWithin is how long, in all, streams of a cluster are waited for while they elect a leader.
const electionWithin = 3 * time.Second

// stream reads a stream. It waits for an election of the leader.
func (l *natsProbe) stream(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	for {
		stream, err := request(ctx, l, func(ctx context.Context) (jetstream.Stream, error) { return l.js.Stream(ctx, name) })
		if err != nil {
			return nil, err
		}
		found := stream.CachedInfo()
		if l.electionsEnd.IsZero() {
			l.electionsEnd = time.Now().Add(electionWithin)
		}
		if hasLeader(found) || time.Now().After(l.electionsEnd) {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return found, nil
		case <-time.After(electionWithin / 10):
		}
	}
}

func hasLeader(found *jetstream.StreamInfo) bool {
	return !events.InCluster(found) || found.Cluster.Leader != ""
}

// noLeader returns a drift when a stream has no leader. needed says that without it no event is answered.
func noLeader(found *jetstream.StreamInfo, needed bool) []events.ConfigDrift {
	if hasLeader(found) {
		return nil
	}
	impact := "it stores no message, so dead letters cannot be replayed or discarded"
	if needed {
		impact = "it stores no message, so events wait"
	}
	down := cmp.Or(strings.Join(offline(found), ", "), "none")
	return []events.ConfigDrift{{
		Found: "it has no leader; servers with a copy that are offline: " + down, Impact: impact,
		Fix: "start these servers of NATS, or see their logs", Fatal: needed,
	}}
}

// offline returns the servers with a copy of a stream that are down.
func offline(found *jetstream.StreamInfo) (names []string) {
	if found.Cluster == nil {
		return nil
	}
	for _, peer := range found.Cluster.Replicas {
		if peer.Offline {
			names = append(names, peer.Name)
		}
	}
	return names
}

// noBatches returns a drift when a stream of a cluster allows no atomic batches, which Setup does not change there.
func noBatches(found *jetstream.StreamInfo) []events.ConfigDrift {
	if found.Config.AllowAtomicPublish || !events.InCluster(found) {
		return nil
	}
	return []events.ConfigDrift{{
		Found: "it allows no atomic batches", Impact: "messages are stored one by one, which is slower",
		Fix: "nats stream edit " + found.Config.Name + " --force --allow-batch\n" +
			"only when every server is NATS 2.12 or newer: an older one would stop the stream, also after a return to it",
	}}
}

// droppedEarly returns a drift when the outbound stream was full and has dropped outcomes that
// still matter.
func droppedEarly(found *jetstream.StreamInfo, retention events.Retention) []events.ConfigDrift {
	limited := found.Config.MaxBytes > 0 || found.Config.MaxMsgs > 0
	oldest := found.TimeStamp.Sub(found.State.FirstTime)
	if !limited || found.State.FirstSeq <= 1 || found.State.Msgs == 0 ||
		oldest >= retention.HoldLifetime+retention.AnswerTTL {
		return nil
	}
	return []events.ConfigDrift{{
		Found: fmt.Sprintf("it is limited (%d bytes, %d messages), and its oldest message is %s old",
			found.Config.MaxBytes, found.Config.MaxMsgs, oldest.Round(time.Second)),
		Impact: fmt.Sprintf("it drops outcomes that still matter (for %s): holds and answers cannot be rebuilt from it",
			retention.HoldLifetime+retention.AnswerTTL),
		Fix:   "nats stream edit " + found.Config.Name + " --force --max-bytes=-1 --max-msgs=-1",
		Fatal: oldest < retention.HoldLifetime,
	}}
}

// addServing records which servers have a copy of a stream.
func (l *natsProbe) addServing(copies *jetstream.ClusterInfo) {
	if copies == nil {
		return
	}
	if copies.Leader != "" {
		l.serving = append(l.serving, copies.Leader)
	}
	for _, peer := range copies.Replicas {
		l.serving = append(l.serving, peer.Name)
	}
}

// streamCopies is the number of copies of a stream.
type streamCopies struct {
	stream string
	number int
	exists bool // else the worker will create it
	down   []string
}

// natsReplicas checks the number of copies of each stream. A lone server would delete its streams in a cluster.
func (r *report) natsReplicas(of []streamCopies, want int, inCluster bool) {
	var all, fixes, down []string
	when := "\n"
	for _, s := range of {
		down = append(down, s.down...)
		verb := "has"
		if !s.exists {
			verb, when = "will be created with", "\nwhen they exist, "
		}
		all = append(all, fmt.Sprintf("%s %s %d", s.stream, verb, s.number))
		if s.number < want {
			fixes = append(fixes, fmt.Sprintf("nats stream edit %s --force --replicas %d", s.stream, want))
		}
	}
	const impact = "while that server is down no event is answered, and acknowledged events are lost with its disk"
	switch {
	case len(all) == 0:
		r.skipAll("no stream could be checked", NATSReplicas)
	case len(down) > 0:
		slices.Sort(down)
		names := strings.Join(slices.Compact(down), ", ")
		r.warn(NATSReplicas, fmt.Sprintf("%s; offline: %s", strings.Join(all, ", "), names),
			"a stream that loses one more server may store no message", "start these servers of NATS, or see their logs")
	case len(fixes) > 0 && !inCluster:
		r.warn(NATSReplicas, strings.Join(all, ", "), impact, fmt.Sprintf("move the streams to a cluster of at least %d servers as "+
			"deployments/README.md says (From one NATS server to a cluster): a server that gets a cluster block deletes its streams", want))
	case len(fixes) > 0:
		r.warn(NATSReplicas, strings.Join(all, ", "), impact,
			strings.Join(fixes, "\n")+when+fmt.Sprintf("in a cluster of at least %d servers", want))
	default:
		r.ok(NATSReplicas, strings.Join(all, ", "))
	}
}

func (r *report) natsConsumers(ctx context.Context, l *natsProbe, t Target, ns events.Namespace) {
	const name = "nats.consumers"
	var all []events.ConfigDrift
	var names []string
	for _, wanted := range ns.Consumers() {
		consumer, err := request(ctx, l, func(ctx context.Context) (jetstream.Consumer, error) {
			return l.js.Consumer(ctx, ns.InStream(), wanted.Durable)
		})
		names = append(names, wanted.Durable)
		switch {
		case errors.Is(err, nats.ErrPermissionViolation):
			r.unknown(name, err.Error(), fmt.Sprintf("allow the user to publish on $JS.API.CONSUMER.INFO.%s.%s",
				ns.InStream(), wanted.Durable))
			return
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			all = append(all, events.ConfigDrift{
				Found: "consumer " + wanted.Durable + " does not exist", Impact: "no worker reads its events",
				Fix: "worker migrate", Fatal: true,
			})
		case err != nil:
			r.fail(name, err.Error(), "JetStream does not answer correctly", "make sure that the stream has a leader")
			return
		default:
			for _, drift := range events.DiffConsumer(consumer.CachedInfo().Config, wanted) {
				drift.Found = wanted.Durable + ": " + drift.Found
				all = append(all, drift)
			}
		}
	}
	if t.Migrates && len(all) > 0 {
		var founds []string
		for _, drift := range all {
			founds = append(founds, drift.Found)
		}
		r.ok(name, strings.Join(founds, "; ")+"; the worker fixes it")
		return
	}
	r.drifts(name, strings.Join(names, ", "), all)
}

// natsSync checks sync_interval, which the monitoring addresses report: how often a server syncs messages to
// disk. The check is ok when it is "always" on each server that has a copy of a stream and on the
// connected one.
func (r *report) natsSync(l *natsProbe) {
	const (
		fix = "jetstream { sync_interval: always }\nin the configuration of every NATS server"
		why = "a power cut loses messages acknowledged in the last minutes: events, and outcomes that a rebuild needs"
	)
	if len(l.monitored) == 0 {
		r.unknown(NATSSync, "only the monitoring address of NATS reports it",
			"give --nats-monitor-urls (http_port in the configuration of NATS), or make sure of:\n"+fix)
		return
	}
	var always, late, silent, missing []string
	sure := make(map[string]bool) // by the name of a server
	for _, m := range l.monitored {
		switch {
		case m.err != nil:
			silent = append(silent, fmt.Sprintf("%s: %v", events.RedactedURL(m.address), m.err))
		case m.Always:
			always = append(always, m.server+": always")
			sure[m.server] = true
		default:
			late = append(late, fmt.Sprintf("%s: every %s", m.server, time.Duration(m.IntervalNS)))
		}
	}
	for _, server := range l.servers() {
		if !sure[server] {
			missing = append(missing, server+" has not reported it")
		}
	}
	switch {
	case len(late) > 0:
		r.fail(NATSSync, strings.Join(slices.Concat(late, always, silent), ", "), why, fix)
	case len(silent) > 0:
		r.unknown(NATSSync, strings.Join(slices.Concat(silent, missing, always), ", "),
			"correct --nats-monitor-urls: an address looks like http://nats:8222")
	case len(missing) > 0:
		r.unknown(NATSSync, strings.Join(slices.Concat(missing, always), ", "),
			"add the monitoring address of each server of the cluster to --nats-monitor-urls")
	default:
		r.ok(NATSSync, strings.Join(always, ", "))
	}
}

// monitored is what a monitoring address reports.
type monitored struct {
	address string
	err     error // it reports nothing
	*jetStreamConfig
	faults []natsFault
}

// natsFault is what a server says of itself when it is not healthy.
type natsFault struct {
	Account string `json:"account"`
	Stream  string `json:"stream"` // "" when it concerns no stream
	Error   string `json:"error"`
}

// jetStreamConfig is the configuration of a server, with the bytes of file storage that it uses.
type jetStreamConfig struct {
	server     string
	used       int64
	Always     bool  `json:"sync_always"`
	IntervalNS int64 `json:"sync_interval"`
	MaxStore   int64 `json:"max_storage"` // bytes
}

// readMonitors reads monitoring addresses, all at the same time, in at most two seconds.
func readMonitors(ctx context.Context, addresses []string) []monitored {
	ctx, cancel := context.WithTimeout(ctx, within/5)
	defer cancel()
	read := make([]monitored, len(addresses))
	var all sync.WaitGroup
	for i, address := range addresses {
		all.Go(func() {
			config, err := jetStreamOf(ctx, address)
			read[i] = monitored{address: address, err: err, jetStreamConfig: config}
			if err == nil {
				read[i].faults = faultsOf(ctx, address)
			}
		})
	}
	all.Wait()
	return read
}

// readMonitor decodes the answer of a monitoring address to a request for path. It returns an error unless the answer has
// one of the statuses.
func readMonitor(ctx context.Context, monitor, path string, answer any, statuses ...int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(monitor, "/")+path, nil)
	if err != nil {
		return errors.New("not a URL")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return errors.Unwrap(err) // without the URL
	}
	defer func() { _ = response.Body.Close() }() // only read
	if !slices.Contains(statuses, response.StatusCode) {
		return fmt.Errorf("unexpected response %s", response.Status)
	}
	if err := json.UnmarshalRead(http.MaxBytesReader(nil, response.Body, monitorLimit), answer); err != nil {
		return errors.New("unexpected response: not that of NATS")
	}
	return nil
}

func jetStreamOf(ctx context.Context, monitor string) (*jetStreamConfig, error) {
	var varz struct {
		Name      string `json:"server_name"`
		JetStream struct {
			Config *jetStreamConfig `json:"config"`
			Stats  struct {
				Used int64 `json:"storage"`
			} `json:"stats"`
		} `json:"jetstream"`
	}
	if err := readMonitor(ctx, monitor, "/varz", &varz, http.StatusOK); err != nil {
		return nil, err
	}
	if varz.JetStream.Config == nil {
		return nil, errors.New("JetStream is not enabled")
	}
	varz.JetStream.Config.server, varz.JetStream.Config.used = varz.Name, varz.JetStream.Stats.Used
	return varz.JetStream.Config, nil
}

// faultsOf returns what a server says of itself when it is not healthy, nil if it says nothing.
func faultsOf(ctx context.Context, monitor string) []natsFault {
	var health struct {
		Faults []natsFault `json:"errors"`
	}
	if readMonitor(ctx, monitor, "/healthz?details=true", &health, http.StatusOK, http.StatusServiceUnavailable) != nil {
		return nil
	}
	return health.Faults
}
