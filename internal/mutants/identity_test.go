package mutants

// ofIdentity are mutants of how events, outcomes and dead letters are told apart.
var ofIdentity = []mutant{
	{
		name: "ids-of-sources-mix", wrong: "the inbound stream keeps the default duplicate window: the second of two events with one id is dropped", trap: "3",
		file: "internal/events/streams.go",
		old:  ", MaxMsgSize: inMessageMax, Duplicates: inDuplicates,",
		new:  ", MaxMsgSize: inMessageMax,",
		pkg:  "./internal/events", run: "^TestSameIDOfTwoSources$",
	},
	{
		name: "resumed-replay-publishes-twice", wrong: "a replay that was killed publishes an event twice when it is resumed", trap: "dedup of replays",
		file: "internal/events/replay.go",
		old:  "	if _, p.before = r.before[messageID]; p.before {\n",
		new:  "	if p.before {\n",
		pkg:  "./internal/events", run: "^TestReplayOfALetter$",
	},
}
