package mutants

// ofSweep are mutants of what keeps one resource from delaying the sweep of others.
var ofSweep = []mutant{
	{
		name: "failure-puts-off-the-timer", wrong: "while a resource cannot be swept, each sweep puts off the read of all partitions by five seconds", trap: "5",
		file: "internal/holds/expire.go",
		old:  "		if earlier := time.Now().Add(next); earlier.Before(all) {\n			all = earlier\n		}\n",
		new:  "		if len(sw.resting) > 0 {\n			all = time.Now().Add(20 * sweepTick)\n		}\n		_ = next\n",
		pkg:  "./internal/holds", run: "^TestSweep_ResourceCorrupt_RestoresOthers$",
	},
	{
		name: "corrupt-resource-does-not-rest", wrong: "a resource that cannot be swept is swept again in each round", trap: "a limit on everything",
		file: "internal/holds/expire.go",
		old:  "			if !sw.resting[resource].After(now) {\n",
		new:  "			if sw.resting[resource].IsZero() || now.After(time.Time{}) {\n",
		pkg:  "./internal/holds", run: "^TestSweep_ResourcesCorrupt_RestAlone$",
	},
	{
		name: "corrupt-resources-fill-the-window", wrong: "resources that rest count as resources that are swept: those behind them are never read", trap: "5",
		file: "internal/holds/expire.go",
		old:  "			Args:   []any{s.told(), \"\", \"\", dueMax + restingIn[p]},\n",
		new:  "			Args:   []any{s.told(), \"\", \"\", dueMax},\n",
		pkg:  "./internal/holds", run: "^TestSweep_ResourcesCorrupt_RestAlone$",
	},
	{
		name: "full-resource-first", wrong: "a resource that always has more due than a run expires uses up the limit of its run, round after round", trap: "5",
		file: "internal/holds/expire.go",
		old:  "	slices.SortStableFunc(due, func(a, b string) int { return flag(sw.fed[a]) - flag(sw.fed[b]) })\n",
		new:  "",
		pkg:  "./internal/holds", run: "^TestSweep_OneResourceFull_TakesTurns$",
	},
	{
		name: "sweep-until-nothing-is-due", wrong: "a partition that has more due is swept again and again before the others are read", trap: "5",
		file: "internal/holds/expire.go",
		old:  "		if now := time.Now(); !e.options.NoTimer && !now.Before(all) {\n",
		new:  "		if now := time.Now(); len(unfinished) == 0 && !e.options.NoTimer && !now.Before(all) {\n",
		pkg:  "./internal/holds", run: "^TestSweep_DueWithoutEnd_RestoresOthers$",
	},
	{
		name: "one-partition-fails-all", wrong: "a partition whose agenda cannot be read keeps all from being swept", trap: "5",
		file: "internal/holds/expire.go",
		old:  "callErr)\n			continue\n",
		new:  "callErr)\n			return nil, nil, sweepTick, err\n",
		pkg:  "./internal/holds", run: "^TestSweep_PartitionSilent_RestoresOthers$",
	},
	{
		name: "sweep-waits-for-a-silent-server", wrong: "a sweep waits for a partition that does not answer", trap: "5",
		file: "internal/holds/expire.go",
		old:  "	s.runWithin(ctx, sw.within, calls...)\n",
		new:  "	s.run(ctx, calls...)\n",
		pkg:  "./internal/holds", run: "^TestSweep_PartitionSilent_RestoresOthers$",
	},
	{
		name: "every-worker-reconciles", wrong: "a worker reads all that is kept although another has the lease", trap: "one worker at a time",
		file: "internal/audit/lease.go",
		old:  "	case held:\n",
		new:  "	case held || err == nil:\n",
		pkg:  "./internal/audit", run: "^TestReconciler_SeveralWorkers_OneReads$",
	},
	{
		name: "lease-taken-from-its-holder", wrong: "a lease is taken whether or not another holder has it", trap: "one worker at a time",
		file: "internal/store/queries/lease_keep.sql",
		old:  "WHERE l.holder = excluded.holder OR l.held_until <= clock_timestamp()\n",
		new:  "",
		pkg:  "./internal/store", run: "^TestLease_SeveralHolders_OneHasIt$",
	},
	{
		name: "rounds-do-not-rest", wrong: "a round takes as much of the time as it can get", trap: "a limit on everything",
		file: "internal/audit/reconcile.go",
		old:  "	err := r.rest(ctx, r.budget.ReserveN(time.Now(), int(worked/time.Microsecond)).Delay())\n",
		new:  "	_ = r.budget.ReserveN(time.Now(), int(worked/time.Microsecond))\n	err := r.rest(ctx, 0)\n",
		pkg:  "./internal/audit", run: "^TestReconciler_BudgetExhausted_HealsWhatIsReported$",
	},
}
