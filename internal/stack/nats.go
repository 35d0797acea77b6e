package stack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// natsStoreMax bounds the bytes that all streams of a temporary stack reserve. The server's default is
// a share of the free disk. The reservations of many small test namespaces exceed it, although they use
// little.
const natsStoreMax = 1 << 50

// natsReadySlice bounds one wait for readiness between two checks of ctx. The server polls without a rest when it
// is shorter than 25 ms.
const natsReadySlice = 100 * time.Millisecond

// natsServer is a NATS server with JetStream in this process.
type natsServer struct {
	srv *server.Server
	log *tail
}

// startNATS starts servers that store their streams in dir and, if there are several, form one cluster. It
// returns when they are ready and have elected a leader. A durable server syncs every message to disk before
// it acknowledges it.
func startNATS(ctx context.Context, dir string, size int, durable bool) (all []*natsServer, err error) {
	defer func() {
		if err != nil {
			err, all = errors.Join(err, stopAll(all, stopWithin)), nil
		}
	}()
	options, err := natsOptions(dir, size)
	if err != nil {
		return nil, err
	}
	for _, o := range options {
		if durable {
			o.SyncAlways, o.JetStreamMaxStore = true, 0
		}
		srv, err := server.NewServer(o)
		if err != nil {
			return all, fmt.Errorf("configure: %w", err)
		}
		n := &natsServer{srv: srv, log: &tail{}}
		srv.SetLoggerV2(natsLog{n.log}, false, false, false)
		srv.Start()
		all = append(all, n)
	}
	for _, n := range all {
		if err := n.awaitReady(ctx); err != nil {
			return all, err
		}
	}
	if size > 1 {
		err = awaitLeader(ctx, all)
	}
	return all, err
}

// natsOptions returns the options of servers that are not durable.
func natsOptions(dir string, size int) ([]*server.Options, error) {
	all, routes := make([]*server.Options, size), make([]*url.URL, size)
	for i := range all {
		all[i] = &server.Options{
			Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true,
			JetStream: true, StoreDir: dir, DisableJetStreamBanner: true, JetStreamMaxStore: natsStoreMax,
		}
	}
	if size == 1 {
		return all, nil
	}
	ports, err := QuietPorts(size)
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		routes[i] = &url.URL{Scheme: "nats-route", Host: Loopback(ports[i])}
		o.ServerName = fmt.Sprintf("nats-%d", i+1)
		o.StoreDir, o.Routes = filepath.Join(dir, o.ServerName), routes
		o.Cluster = server.ClusterOpts{Name: "holdfast", Host: "127.0.0.1", Port: ports[i]}
	}
	return all, nil
}

// awaitLeader waits until all servers of a cluster know each other and have a leader for JetStream, which knows
// that all are online: otherwise it refuses streams with a replica on each.
func awaitLeader(ctx context.Context, all []*natsServer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("no leader within %v", readyWithin))
	defer cancel()
	return Poll(ctx, readyPoll, func() (bool, error) {
		return slices.ContainsFunc(all, func(n *natsServer) bool {
			return n.srv.JetStreamIsLeader() && len(n.srv.JetStreamClusterPeers()) == len(all)
		}) && !slices.ContainsFunc(all, func(n *natsServer) bool { return !n.srv.JetStreamIsCurrent() }), nil
	})
}

func (n *natsServer) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready within %v", readyWithin))
	defer cancel()
	if err := Poll(ctx, readyPoll, func() (bool, error) {
		if !n.srv.Running() {
			return false, errors.New("stopped while starting")
		}
		return n.srv.ReadyForConnections(natsReadySlice), nil
	}); err != nil {
		return fmt.Errorf("%w; %s", err, n.log)
	}
	if !n.srv.JetStreamEnabled() {
		return fmt.Errorf("JetStream is not enabled; %s", n.log)
	}
	return nil
}

// stop stops the server. It returns an error when that exceeds within; the server runs in this process
// and cannot be killed.
func (n *natsServer) stop(within time.Duration) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.srv.Shutdown()
		n.srv.WaitForShutdown()
	}()
	select {
	case <-done:
		return nil
	case <-time.After(within):
		return fmt.Errorf("nats did not stop within %v: %s", within, n.log)
	}
}

// natsLog keeps warnings and errors of the server, and drops other messages.
type natsLog struct{ tail *tail }

func (l natsLog) keep(format string, v []any) {
	_, _ = fmt.Fprintf(l.tail, format+"\n", v...) // a write to a tail cannot fail
}

func (l natsLog) Noticef(string, ...any)         {}
func (l natsLog) Debugf(string, ...any)          {}
func (l natsLog) Tracef(string, ...any)          {}
func (l natsLog) Warnf(format string, v ...any)  { l.keep("[WRN] "+format, v) }
func (l natsLog) Errorf(format string, v ...any) { l.keep("[ERR] "+format, v) }
func (l natsLog) Fatalf(format string, v ...any) { l.keep("[FTL] "+format, v) }
