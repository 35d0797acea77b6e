package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"holdfast/internal/record"
)

// findings are what an inspection of all servers has found.
type findings struct {
	servers []Server
	whole   record.PartitionSet // have all data of their epochs
	lost    record.PartitionSet // lack data; the Why of their epochs says why
	foreign record.PartitionSet // have data of another database
	silent  record.PartitionSet // are on servers that do not answer
	moved   record.PartitionSet // of the whole ones: resharding has moved them here, from the server of their epoch
}

// layout is what the checks until now have found: which servers have answered, and on which of them
// each partition was whole last.
type layout struct {
	check   int            // the number of the last check
	servers map[string]int // by name: the check since which the server has answered at each check, and lost nothing
	on      [record.Partitions]string
	at      [record.Partitions]int // the check that found the partition whole there
}

// next returns the layout of the next check, in which the servers with the given names have answered.
func (l *layout) next(names []string) layout {
	next := layout{check: l.check + 1, servers: make(map[string]int, len(names)), on: l.on, at: l.at}
	for _, name := range names {
		since, answered := l.servers[name]
		if !answered {
			since = next.check
		}
		next.servers[name] = since
	}
	return next
}

// inspection is the state of one server, or the error for which it is unknown.
type inspection struct {
	Server
	state redisState
	err   error
}

// inspect checks whether Redis still has what was written under the epochs of complete partitions. It
// says nothing about the partitions of a server that does not answer. It joins the errors, and logs those of a
// server of a cluster that does not answer: the check of the others has not failed. It confirms
// a loss on a new connection: the existing one may lead to a server that was replaced. In epochs it
// stores why a partition is lost, and the names of servers that have changed.
func (s *Supervisor) inspect(
	ctx context.Context, epochs *Epochs, complete record.PartitionSet,
) (found findings, err error) {
	reading, cancel := context.WithTimeout(ctx, s.InspectTimeout)
	defer cancel()
	servers, err := s.Servers(reading)
	if err != nil {
		found.silent = complete
		return found, fmt.Errorf("find the redis servers: %w", err)
	}
	s.servers.Store(&servers)
	s.inspectors.keep(servers)
	all := s.readAll(reading, servers)
	// A server that hangs may have used all the time of this first read, so what follows has its own.
	confirming, cancel := context.WithTimeout(ctx, s.InspectTimeout/2)
	defer cancel()
	found = s.classifyPartitions(epochs, all, complete)
	doubtful := found.lost | found.foreign
	if doubtful != 0 {
		for i, server := range all {
			if server.Partitions&doubtful != 0 {
				s.inspectors.close(server.Addr)
				all[i] = s.readAll(confirming, servers[i:i+1])[0]
			}
		}
		found = s.classifyPartitions(epochs, all, complete)
	}
	found.servers = servers
	s.logSilent(all)
	s.checkEvictions(epochs, all, found.lost)
	var failed []error
	for _, server := range all {
		if server.err != nil {
			found.silent |= server.Partitions & complete
			s.inspectors.close(server.Addr)
			if len(servers) == 1 {
				failed = append(failed, server.err)
			}
			continue
		}
		if its := server.Partitions & (found.lost | found.foreign); its != 0 {
			s.inspectors.close(server.Addr)
		} else if server.state.partitions.Has(FormatPartition) {
			failed = append(failed, s.checkFormat(confirming, server.state.format, s.inspectors.of(server.Server)))
		}
	}
	if errors.Is(errors.Join(failed...), ErrUnknownFormat) {
		found.whole = 0 // nothing is decided, not even until Run ends
	}
	if found.foreign != 0 {
		failed = append(failed, errUntouched)
	}
	failed = append(failed, s.storeServers(ctx, epochs, all, &found))
	return found, errors.Join(failed...)
}

// logSilent logs which servers of a cluster do not answer any more, and which do again.
func (s *Supervisor) logSilent(all []inspection) {
	if len(all) == 1 {
		return // its error is that of the check
	}
	silent := make(map[string]bool)
	for _, server := range all {
		switch was := s.silent[server.Addr]; {
		case server.Partitions == 0: // see Cluster.Servers
		case server.err != nil:
			silent[server.Addr] = true
			if !was {
				s.Log.Error().Err(server.err).Str("server", server.Addr).Stringer("partitions", server.Partitions).
					Msg("redis shard does not answer, its partitions wait")
			}
		case was:
			s.Log.Info().Str("server", server.Addr).Msg("redis shard answers again")
		}
	}
	s.silent = silent
}

// readAll reads the states of servers at the same time, see readState.
func (s *Supervisor) readAll(ctx context.Context, servers []Server) []inspection {
	all := make([]inspection, len(servers))
	var reading sync.WaitGroup
	for i, server := range servers {
		client := s.inspectors.of(server)
		reading.Go(func() {
			state, err := readState(ctx, s.Namespace, server.runner(client), server.Partitions)
			all[i] = inspection{server, state, err}
		})
	}
	reading.Wait()
	return all
}

// classifyPartitions finds the complete partitions that lack data of their epochs, and those that have all of it.
func (s *Supervisor) classifyPartitions(epochs *Epochs, all []inspection, complete record.PartitionSet) (found findings) {
	now := s.nextLayout(all)
	for _, server := range all {
		if server.err != nil {
			continue
		}
		its := server.state.partitions & complete
		if server.state.isForeign(its, epochs[0].Name) {
			found.foreign |= its
			continue
		}
		for p := range its.Each() {
			epochs[p].Why = s.findLoss(p, &epochs[p], server.state.epochs[p], server.state.server, now)
			if epochs[p].Why != "" {
				found.lost.Add(p)
				continue
			}
			found.whole.Add(p)
			if !s.isServer(&epochs[p], server.state.server) {
				found.moved.Add(p)
			}
		}
		if hasLostKeys(epochs, its&found.lost) {
			moved := its & found.moved
			for p := range moved.Each() {
				epochs[p].Why = anotherServer
			}
			found.lost, found.whole, found.moved = found.lost|moved, found.whole&^moved, found.moved&^moved
		}
	}
	return found
}

// hasLostKeys reports whether some of the lost partitions of a server show that it has lost keys: it may have lost those, too,
// that were moved to it. The others only do not show that they were moved with all their keys.
func hasLostKeys(epochs *Epochs, lost record.PartitionSet) bool {
	for p := range lost.Each() {
		if causeOf(epochs[p].Why) != causeAnotherServer {
			return true
		}
	}
	return false
}

// nextLayout returns the layout of this check.
func (s *Supervisor) nextLayout(all []inspection) layout {
	var names []string
	for _, server := range all {
		if server.err == nil {
			names = append(names, server.state.server.name())
		}
	}
	return s.seen.next(names)
}

// epochMissing is the reason for which a partition without an epoch is rebuilt, or how it begins.
const epochMissing = "epoch missing: data was removed, or not persisted across a restart"

// findLoss returns the reason why a partition lacks data of its epoch, "" when it has all of it.
func (s *Supervisor) findLoss(p int, e *Epoch, stored string, on server, now layout) string {
	switch {
	case stored == e.Name+lostSuffix:
		return anotherServer // another worker has noticed it
	case stored == "":
		return epochMissing
	case generation(stored) > generation(e.Name):
		return "newer epoch: Postgres is from before an earlier loss of Redis, after a failover or a restore"
	case stored != e.Name:
		return "older epoch: the data is from before an earlier loss"
	case !s.isServer(e, on) && !now.movedByResharding(p, e.Server, on.name()):
		return anotherServer
	}
	return ""
}

// isServer reports whether a server has had an epoch without interruption.
func (s *Supervisor) isServer(e *Epoch, found server) bool {
	return e.Server == "" || e.Server == found.name() ||
		found.is(e.Server) && s.verifiedAt[e.Server].since() < historyChangeWindow
}

// movedByResharding reports whether a partition that was on one server, and is on another one now, was
// moved there with all its data, key by key, as resharding a cluster does. That is so when both servers
// have answered, with the same run and history, at each check from one that found the partition whole
// on the first until now: then neither of the two has lost anything meanwhile. In all other cases the
// partition may be on a server that was restarted, or was promoted and lacks the last writes.
func (l *layout) movedByResharding(p int, from, to string) bool {
	sinceFrom, hasFrom := l.servers[from]
	sinceTo, hasTo := l.servers[to]
	return l.on[p] == from && hasFrom && hasTo && sinceFrom <= l.at[p] && sinceTo <= l.at[p]
}

// storeServers stores the names of the servers of whole partitions that have changed, and remembers
// what this check has found.
func (s *Supervisor) storeServers(ctx context.Context, epochs *Epochs, all []inspection, found *findings) error {
	seen, now := s.nextLayout(all), momentAt(time.Now())
	var failed []error
	for _, server := range all {
		if server.err != nil {
			continue
		}
		name, whole := server.state.server.name(), server.state.partitions&found.whole
		if hasLostKeys(epochs, server.state.partitions&found.lost) {
			seen.servers[name] = seen.check
		}
		var other record.PartitionSet
		for p := range whole.Each() {
			if !server.state.moving.Has(p) { // until the move ends, the last check before it counts
				seen.on[p], seen.at[p] = name, seen.check
			}
			if epochs[p].Server != name {
				other.Add(p)
			}
		}
		if other != 0 {
			err := s.EpochStore.SetEpochServer(ctx, other, epochs, name)
			if err != nil && !errors.Is(err, ErrEpochChanged) { // else another worker has stored it
				failed = append(failed, err)
				found.whole &^= other
			}
			for p := range (other & found.moved).Each() {
				if err == nil {
					epochs[p].Server = name
				}
			}
		}
		if whole != 0 {
			s.verifiedAt[name] = now
		}
	}
	maps.DeleteFunc(s.verifiedAt, func(_ string, at moment) bool { return at.since() > historyChangeWindow })
	s.seen = seen
	return errors.Join(failed...)
}
