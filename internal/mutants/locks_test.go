package mutants

// ofLocks are mutants of locks.
var ofLocks = []mutant{
	{
		name: "unlocked-without-token", wrong: "a lock is released by one who has lost it", trap: "release checks the owner slot by slot",
		file: "internal/locking/lua/unlock.lua",
		old:  "    if value then rest, mine = without(value, fence, id) end\n",
		new:  "    if value then rest, mine = '', true end\n",
		pkg:  "./internal/locking", run: "^TestPartialLoss$/^range$",
	},
	{
		name: "renewed-without-token", wrong: "a lock is renewed for one who has lost it", trap: "renewal checks the owner slot by slot",
		file: "internal/locking/lua/renew.lua",
		old:  "    if value and select(2, without(value, ARGV[1], ARGV[2])) then\n",
		new:  "    if value then\n",
		pkg:  "./internal/locking", run: "^TestPartialLoss$/^range$",
	},
	{
		name: "some-instead-of-all", wrong: "a set of slots is locked when its first one is free", trap: "all slots or none",
		file: "internal/locking/lua/lock.lua",
		old:  "  if blocked and not wait then\n",
		new:  "  if blocked == 1 and not wait then\n",
		pkg:  "./internal/locking", run: "^TestAllOrNone$/^range$",
	},
	{
		name: "fence-from-one", wrong: "when Redis has lost the count of fencing tokens, it is begun anew", trap: "fencing tokens grow for ever",
		file: "internal/locking/lua/lock.lua",
		old:  "  if type(fence) == 'table' or fence < ARGV[6] + 0 then\n",
		new:  "  if type(fence) == 'table' then\n",
		pkg:  "./internal/locking", run: "^TestFenceAfterLoss$",
	},
	{
		name: "keys-in-any-order", wrong: "the keys of a lock are neither sorted nor distinct: two who want the same wait for each other", trap: "sorted and de-duplicated",
		file: "internal/locking/acquisition.go",
		old:  "slices.Compact(slices.Sorted(slices.Values(set.Keys)))",
		new:  "slices.Clone(set.Keys)",
		pkg:  "./internal/locking", run: "^TestRepeatedKeys$",
	},
	{
		name: "late-attempt-queues", wrong: "an attempt that comes when its acquisition has left queues all the same: others wait for nobody", trap: "HOLDFAST_LOCK_FAIR",
		file: "internal/locking/lua/lock.lua",
		old:  "  if wait and redis.call('EXISTS', gone(scope, id)) == 1 then return {'gone'} end\n",
		new:  "",
		pkg:  "./internal/locking", run: "^TestLateAttempt$",
	},
	{
		name: "redlock-without-validity", wrong: "Redlock takes a lock for its own that took longer to get than its lease is", trap: "validity = lease - elapsed - drift",
		file: "internal/locking/redlock.go",
		old:  "	if !time.Now().Before(until) {\n",
		new:  "	if until.IsZero() {\n",
		pkg:  "./internal/locking", run: "^TestSlowAcquisition$",
	},
	{
		name: "redlock-leaves-keys", wrong: "Redlock leaves keys behind when its caller's context is over", trap: "released with a fresh context",
		file: "internal/locking/redlock.go",
		old:  "	_ = r.each(context.WithoutCancel(ctx), []*Lock{l}, (*redsync.Mutex).UnlockContext)\n",
		new:  "	_ = r.each(ctx, []*Lock{l}, (*redsync.Mutex).UnlockContext)\n",
		pkg:  "./internal/locking", run: "^TestCancelledAcquisition$",
	},
	{
		name: "optimistic-without-watch", wrong: "an optimistic transaction is done although what it rests on has changed", trap: "WATCH on rev",
		file: "internal/locking/optimistic.go",
		old:  "append(watch, l.Set.Version)",
		new:  "append(watch, l.Set.Version+\":\")",
		pkg:  "./internal/locking", run: "^TestMutualExclusion$/^optimistic$",
	},
}

// ofPrograms are mutants of the programs and of what they check at their start.
var ofPrograms = []mutant{
	{
		name: "default-max-retries", wrong: "go-redis sends a command again by itself when its reply was lost", trap: "MaxRetries: -1",
		file: "cmd/worker/servers.go",
		old:  "	options.MaxRetries = -1\n",
		new:  "",
		pkg:  "./cmd/worker", run: "^TestLostReplyIsNotRepeated$",
	},
	{
		name: "kept-while-nats-is-away", wrong: "outcomes are kept while NATS is away, and sent when it is back, whatever is true by then", trap: "7",
		file: "cmd/worker/servers.go",
		old:  ", nats.ReconnectBufSize(-1))",
		new:  ")",
		pkg:  "./cmd/worker", run: "^TestNothingIsSentLater$",
	},
	{
		name: "eviction-accepted", wrong: "a Redis is used that evicts keys when its memory is full", trap: "refuse to start on a maxmemory-policy that evicts",
		file: "internal/preflight/redis.go",
		old:  "policy != want {",
		new:  "policy == \"allkeys-random\" {",
		pkg:  "./internal/preflight", run: "^TestRedis$",
	},
	{
		name: "memory-stream-accepted", wrong: "a stream is used that NATS keeps in memory", trap: "3",
		file: "internal/events/faults.go",
		old:  "	if found.Storage != wanted.Storage {\n",
		new:  "	if found.Storage < 0 {\n",
		pkg:  "./internal/events", run: "^TestSetupRefuses$",
	},
	{
		name: "fsync-off-accepted", wrong: "a Postgres is used that does not wait for its disk", trap: "4",
		file: "internal/preflight/postgres.go",
		old:  "	if setting.Value != \"off\" {\n",
		new:  "	if setting.Value != \"\" {\n",
		pkg:  "./internal/preflight", run: "^TestPostgres$",
	},
	{
		name: "password-in-an-error", wrong: "an error about a URL repeats it, with the password in it", trap: "no secret in any error",
		file: "cmd/worker/servers.go",
		old:  "want redis://[user:password@]host:port[/database]\", flag)",
		new:  "want redis://[user:password@]host:port[/database]: %v\", flag, err)",
		pkg:  "./cmd/worker", run: "^TestUsage$",
	},
	{
		name: "body-in-a-log", wrong: "the body of an event that cannot be processed is logged", trap: "no metadata in any log",
		file: "internal/events/settle.go",
		old:  "		l.logDead(log.Warn(), d, why.Reason)\n",
		new:  "		l.logDead(log.Warn().Str(\"body\", oneLine(string(d.msg.Data()))), d, why.Reason)\n",
		pkg:  "./cmd/worker", run: "^TestNothingSecretIsTold$",
	},
}

// ofJudges are mutants of the audit, by which it overlooks something.
var ofJudges = []mutant{
	{
		name: "audit-overlooks-overselling", wrong: "the audit takes any number of what was sold for right", trap: "1, 2",
		file: "internal/audit/judge_capacity.go",
		old:  "			case sold <= most:\n",
		new:  "			case sold >= 0:\n",
		pkg:  "./internal/audit", run: "^TestDamages$/^a_slot_is_oversold$",
	},
	{
		name: "audit-overlooks-silence", wrong: "the audit takes an event without an outcome for answered", trap: "3",
		file: "internal/audit/judge_events.go",
		old:  "			g.unanswered = append(g.unanswered, e.seq)\n",
		new:  "",
		pkg:  "./internal/audit", run: "^TestDamages$/^an_outcome_is_gone$",
	},
	{
		name: "audit-overlooks-the-last-paid", wrong: "the audit of a large resource takes what the last paid hold gave back for held", trap: "1, 2",
		file: "internal/audit/sums.go",
		old:  "	known := m.latest[r.name()]\n",
		new:  "	known := false\n",
		pkg:  "./internal/audit", run: "^TestReconciler_LargeResource_LastEndedHoldIsPaid$",
	},
	{
		name: "audit-overlooks-two-grants", wrong: "the audit takes two holds of one request key for right", trap: "3",
		file: "internal/audit/judge_grants.go",
		old:  "		if first != nil && first.livedWhen(h) {\n",
		new:  "		if first != nil && first.livedWhen(h) && of != \"request key\" {\n",
		pkg:  "./internal/audit", run: "^TestDamages$/^a_request_key_has_two_holds$",
	},
	{
		name: "audit-overlooks-two-ends", wrong: "the audit takes two ends of one hold for right", trap: "3",
		file: "internal/audit/judge_holds.go",
		old:  "	if more.other != 0 {\n",
		new:  "	if more.other == 1 {\n",
		pkg:  "./internal/audit", run: "^TestDamages$/^a_hold_ends_twice$",
	},
	{
		name: "audit-overlooks-two-payments", wrong: "the audit takes a hold that was paid twice for right", trap: "4",
		file: "internal/audit/judge_payments.go",
		old:  "	if len(paid) > 1 {\n",
		new:  "	if len(paid) > 2 {\n",
		pkg:  "./internal/audit", run: "^TestDamages$/^a_hold_is_paid_twice$",
	},
	{
		name: "audit-overlooks-counters", wrong: "the audit takes any counter for right", trap: "5",
		file: "internal/audit/lua/prelude.lua",
		old:  "  judge_each('counter', 'counts', COUNTS, sums)\n",
		new:  "",
		pkg:  "./internal/audit", run: "^TestDamages$/^a_counter_is_too_high$",
	},
	{
		name: "lost-hold-healed-away", wrong: "a counter is lowered though the deadlines say that the record of a hold is missing: its slots are sold again", trap: "2",
		file: "internal/audit/lua/repair.lua",
		old:  "redis.call('ZCARD', DUE) ~= held_records then return false end\n",
		new:  "false then return false end\n",
		pkg:  "./internal/audit", run: "^TestHealsNoLostHoldOfNobody$",
	},
	{
		name: "healed-step-by-step", wrong: "damaged counters are removed in one step and written in others: meanwhile everything is free", trap: "2",
		file: "internal/audit/lua/repair.lua",
		old:  "    if name == 'counts' then put_all(COUNTS, sums) end\n",
		new:  "",
		pkg:  "./internal/audit", run: "^TestHealsInOneStep$",
	},
	{
		name: "healed-by-guesses", wrong: "damaged counters are written from the records that can be read, though others cannot", trap: "2",
		file: "internal/audit/lua/repair.lua",
		old:  "      if broken.records or unread > 0 then return 'impossible' end\n",
		new:  "",
		pkg:  "./internal/audit", run: "^TestNothingMadeUp$",
	},
}

// ofTorture are mutants that are found by what comes of broken servers and connections.
var ofTorture = []mutant{
	{
		name: "commit-cut-off-is-a-commit", wrong: "an outcome is told though the connection was cut before COMMIT was answered", trap: "any error from Commit means unknown",
		file: "internal/store/store.go",
		old:  "		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {\n			if err := work(tx); err != nil || !s.dry {\n				return err\n			}\n			return errDry\n		})\n",
		new:  "		worked := false\n		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {\n			if err := work(tx); err != nil || !s.dry {\n				worked = err == nil\n				return err\n			}\n			return errDry\n		})\n		if worked {\n			return nil\n		}\n",
		pkg:  "./internal/torture", run: "^TestTorture$", args: "-torture.seed 1 -torture.bursts 2 -torture.faults 'commits lost'",
	},
}
