package mutants

// ofConsumer are mutants of how a consumer treats what cannot be settled now, or never.
var ofConsumer = []mutant{
	{
		name: "oversized-is-an-outage", wrong: "an outcome that is larger than the server takes is retried for ever, and its consumer pauses", trap: "3",
		file: "internal/events/settle.go",
		old:  "		case isTooLarge(err):\n",
		new:  "		case isTooLarge(err) && l.name == \"\":\n",
		pkg:  "./internal/events", run: "^TestOversized_LimitShrinks$",
	},
	{
		name: "granted-and-not-announced", wrong: "a hold is granted whose outcome is larger than the server takes", trap: "3",
		file: "internal/events/lane.go",
		old:  "		d.result.Err = l.checkSize(ctx, d, outcomeLimit)\n",
		new:  "",
		pkg:  "./internal/events", run: "^TestOversized_NotDecided$",
	},
	{
		name: "oversized-hold-stays", wrong: "a hold that was granted and cannot be announced stays live", trap: "3",
		file: "internal/events/size.go",
		old:  "	if !granted || created.Replayed {\n",
		new:  "	if !granted || created.RequestKey != \"\" {\n",
		pkg:  "./internal/events", run: "^TestOversized_LimitShrinks$",
	},
	{
		name: "slow-lane-keeps-all", wrong: "a slow lane keeps all that a consumer may have in flight, and no event about another resource is fetched", trap: "a hot resource does not stop others",
		file: "internal/events/lane.go",
		old:  "l.queueBytesMax, l.slowAfter)",
		new:  "l.queueBytesMax, 24*time.Hour)",
		pkg:  "./internal/events", run: "^TestSlowLane_OthersGoOn$",
	},
	{
		name: "ack-pending-bound", wrong: "a durable consumer delivers no more while so many events wait to be retried", trap: "a corrupt resource does not stop others",
		file: "internal/events/streams.go",
		old:  "	ackPendingMax    = -1 ",
		new:  "	ackPendingMax    = 4 * inFlightMax ",
		pkg:  "./internal/events", run: "^TestCorruptHotResource_OthersGoOn$",
	},
	{
		name: "held-out-of-order", wrong: "an event is decided while earlier ones about its resource wait at the server", trap: "events about a resource are decided in their order",
		file: "internal/events/held.go",
		old:  "	i, _ := r.find(seq)\n	return i == 0\n",
		new:  "	return true\n",
		pkg:  "./internal/events", run: "^TestHeld_KeepsOrder$",
	},
	{
		name: "poison-decided-again", wrong: "an event that has a dead letter is decided when it is delivered again: it has an outcome too", trap: "3",
		file: "internal/events/lane.go",
		old:  "		l.findPoisoned(ctx, batch)\n",
		new:  "",
		pkg:  "./internal/events", run: "^TestPoison_PubAckLost$",
	},
	{
		name: "poison-not-recorded", wrong: "a dead letter is published before it is recorded that its event is poison", trap: "3",
		file: "internal/events/poison.go",
		old:  "	return letter, l.process.poison.RecordPoison(ctx, id, resourceOf(d.msg.Subject()), letter.Header.Get(HeaderDLQDetail))\n",
		new:  "	_ = id\n	return letter, nil\n",
		pkg:  "./internal/events", run: "^TestPoison_PubAckLost$",
	},
	{
		name: "poison-despite-outcome", wrong: "an event whose outcome is stored, and whose ack was lost, gets a dead letter when it fails later", trap: "3",
		file: "internal/events/poison.go",
		old:  "	if answered || err != nil {\n",
		new:  "	if _ = answered; err != nil {\n",
		pkg:  "./internal/events", run: "^TestPoison_OutcomeStored$",
	},
	{
		name: "unfinished-kept-at-stop", wrong: "what a worker that stops could not finish is delivered to others only when its ack is overdue", trap: "6",
		file: "internal/events/consumer.go",
		old:  "	c.giveBack(lanes)\n",
		new:  "",
		pkg:  "./internal/events", run: "^TestStop_UnfinishedGivenBack$",
	},
}
