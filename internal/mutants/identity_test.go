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
	{
		name: "binary-mode-without-type", wrong: "in binary mode, events of other types or resources with the same source, id and body are taken for one", trap: "3",
		file: "internal/events/inbound.go",
		old:  "envelope.ID, body, envelope.Type, in.Resource)",
		new:  "envelope.ID, body)",
		pkg:  "./internal/events", run: "^TestOutcomeIDInBinaryMode$",
	},
	{
		name: "duplicate-is-not-compared", wrong: "an outcome whose message id another message has is dropped", trap: "3",
		file: "internal/events/repeat.go",
		old:  "		if err != nil || !ack.Duplicate {\n",
		new:  "		if true {\n",
		pkg:  "./internal/events", run: "^TestDuplicateOfAnother$",
	},
	{
		name: "two-answers", wrong: "an event that is decided twice, and differently, has two outcomes", trap: "3",
		file: "internal/events/repeat.go",
		old:  "		return otherAnswer\n",
		new:  "		return unrelated\n",
		pkg:  "./internal/events", run: "^TestDuplicateWithAnotherAnswer$",
	},
}
