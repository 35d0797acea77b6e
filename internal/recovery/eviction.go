package recovery

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"holdfast/internal/record"
)

// eviction is what INFO says about the keys that a server removes when its memory is full.
type eviction struct {
	known     bool   // false when INFO lacks it
	on        bool   // keys are removed when maxmemory is reached
	policy    string // maxmemory_policy
	maxmemory string // maxmemory_human
	keys      int64  // evicted_keys, since the server was started or its statistics were reset
}

// parseEviction reads the reply to infoCommand.
func parseEviction(info string) eviction {
	fields := InfoFields(info)
	policy, shown := fields["maxmemory_policy"]
	keys, err := strconv.ParseInt(fields["evicted_keys"], 10, 64)
	return eviction{
		known: shown || err == nil, on: shown && policy != "noeviction" && fields["maxmemory"] != "0",
		policy: cmp.Or(policy, "unknown"), maxmemory: fields["maxmemory_human"], keys: keys,
	}
}

// evictionWatch is what the checks until now have found about the eviction of one server.
type evictionWatch struct {
	server     string // its address
	run        string // run_id
	last       eviction
	generation int64 // oldest one of the epochs of its partitions
	keys       int64 // evicted since the first check of the run, or since all these partitions were rebuilt
}

// next returns the watch after a check that has read the server. Generation is the oldest one of its epochs.
func (w evictionWatch) next(server Server, found *redisState, generation int64) evictionWatch {
	next := evictionWatch{w.server, found.server.run, found.eviction, generation, w.keys}
	if next.server == "" {
		next.server = cmp.Or(server.Addr, server.Options().Addr)
	}
	if generation > w.generation {
		next.keys = 0
	}
	switch found := found.eviction; {
	case next.run != w.run: // its count has another start
	case found.keys < w.last.keys: // CONFIG RESETSTAT
		next.keys += found.keys
	default:
		next.keys += found.keys - w.last.keys
	}
	return next
}

// evictionFix is the remedy for a server that evicts keys.
const evictionFix = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"

// describe returns what operators must know about a server, "" for nothing.
func (w evictionWatch) describe() string {
	var all []string
	if w.last.on {
		all = append(all, fmt.Sprintf("%s has maxmemory-policy %s with maxmemory %s: when its memory is full, it evicts holds, "+
			"whose slots are sold again, or answers to request keys: %s", w.server, w.last.policy, w.last.maxmemory, evictionFix))
	}
	if w.keys > 0 {
		all = append(all, fmt.Sprintf("%s has evicted %d keys: when it evicts no more, run worker rebuild", w.server, w.keys))
	}
	return strings.Join(all, "; ")
}

// checkEvictions logs which servers have begun or ceased to evict keys, and describes them in the term. Where the epoch of
// a lost partition is missing on a server that has evicted keys, it adds that to the reason. It invalidates
// nothing by itself: the keys may be those of others, and a rebuild under such a policy would evict keys again.
func (s *Supervisor) checkEvictions(epochs *Epochs, all []inspection, lost record.PartitionSet) {
	watched := make(map[string]evictionWatch)
	var details []string
	for _, server := range all {
		if server.Partitions == 0 { // see Cluster.Servers
			continue
		}
		watch := s.evictions[server.Addr]
		if found := server.state.eviction; server.err == nil && found.known {
			before := watch
			watch = before.next(server.Server, &server.state, epochs.oldestGeneration(server.Partitions))
			s.logEviction(before, watch)
			for p := range (server.Partitions & lost).Each() {
				if found.keys > 0 && epochs[p].Why == epochMissing {
					epochs[p].Why += fmt.Sprintf("; this redis has evicted %d keys, its maxmemory-policy is %s", found.keys, found.policy)
				}
			}
		}
		watched[server.Addr] = watch
		if detail := watch.describe(); detail != "" {
			details = append(details, detail)
		}
	}
	s.evictions = watched
	s.Term.eviction.Store(new(strings.Join(details, "; ")))
}

// logEviction logs what has changed since the last check of a server.
func (s *Supervisor) logEviction(before, now evictionWatch) {
	log := s.Log.With().Str("server", now.server).Str("maxmemory_policy", now.last.policy).Logger()
	switch {
	case now.last.on && !before.last.on:
		log.Error().Str("maxmemory", now.last.maxmemory).Str("fix", evictionFix).
			Msg("redis evicts keys when its memory is full, slots may be sold twice")
	case before.last.on && !now.last.on:
		log.Info().Msg("redis evicts no keys any more")
	}
	if now.keys > 0 && (before.keys == 0 || now.generation > before.generation) {
		log.Error().Int64("evicted_keys", now.keys).Str("fix", evictionFix+"; then run worker rebuild").
			Msg("redis has evicted keys, holds and answers to request keys may be missing")
	}
}
