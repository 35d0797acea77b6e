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
	{
		name: "letters-of-two-streams-mix", wrong: "the dead letters of an inbound stream that was created again have the ids of those before: they vanish", trap: "3",
		file: "internal/events/origin.go",
		old:  "strconv.FormatInt(created.UnixMilli(), 36)",
		new:  "strconv.FormatInt(created.UnixMilli()*0, 36)",
		pkg:  "./internal/events", run: "^TestStreamCreatedAgain$",
	},
	{
		name: "stream-before-not-told-apart", wrong: "the dead letter of an event of a deleted stream has the id of one of the stream that was created since", trap: "3",
		file: "internal/events/origin.go",
		old:  "	if d.meta.Timestamp.Before(since) {\n",
		new:  "	if false {\n",
		pkg:  "./internal/events", run: "^TestStreamCreatedAgain$",
	},
	{
		name: "failures-of-two-streams-mix", wrong: "failures of an event count for another one with its sequence, of the stream that was created since", trap: "3",
		file: "internal/events/origin.go",
		old:  "	return origin{d.meta.Sequence.Stream, d.meta.Timestamp.UnixNano()}\n",
		new:  "	return origin{d.meta.Sequence.Stream, 0}\n",
		pkg:  "./internal/events", run: "^TestStreamCreatedAgain$",
	},
	{
		name: "waiting-payment-skipped", wrong: "a consumer that was missing goes on behind the last event, also where an older one is not answered", trap: "3",
		file: "internal/events/resume.go",
		old:  "		first = min(first, seq)\n",
		new:  "		_ = seq\n",
		pkg:  "./internal/events", run: "^TestMissingConsumerGoesOn$",
	},
	{
		name: "floor-of-another-stream", wrong: "a consumer that was missing goes on where the consumer of a deleted stream was", trap: "3",
		file: "internal/events/revive.go",
		old:  "	if f == nil || !f.created.Equal(created) {\n",
		new:  "	if f == nil {\n",
		pkg:  "./internal/events", run: "^TestMissingConsumerGoesOn$",
	},
	{
		name: "lost-outcomes-are-no-doubt", wrong: "a consumer that was missing decides old payments again when the outcome log has lost their answers", trap: "3",
		file: "internal/events/resume.go",
		old:  "	if lost && !r.floored {\n",
		new:  "	if false {\n",
		pkg:  "./internal/events", run: "^TestMissingConsumerThatIsNotKnown$",
	},
	{
		name: "one-replica-in-a-cluster", wrong: "streams have one replica in a cluster: what was acknowledged is lost with one server", trap: "3",
		file: "internal/events/streams.go",
		old:  "		config.Replicas = replicasDefault\n",
		new:  "		config.Replicas = 1\n",
		pkg:  "./internal/preflight", run: "^TestReplicas$",
	},
}
