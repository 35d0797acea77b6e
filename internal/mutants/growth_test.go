package mutants

// ofGrowth are mutants of the code that removes old data.
var ofGrowth = []mutant{
	{
		name: "trim-ignores-acks", wrong: "inbound events are removed that nobody has answered", trap: "3",
		file: "internal/events/trim.go",
		old:  "	upTo := min(expired, acked.all)\n",
		new:  "	upTo := expired\n",
		pkg:  "./internal/events", run: "^TestTrimmer_OneConsumerOfTheWorkersIsBehind_KeepsFromThereOn$",
	},
	{
		name: "trim-without-a-consumer", wrong: "inbound events are removed while a consumer of the workers is missing", trap: "3",
		file: "internal/events/trim.go",
		old:  "		return acked, fmt.Errorf(\"%w: %s\", ErrTrimBlocked, name)\n",
		new:  "		_ = name\n",
		pkg:  "./internal/events", run: "^TestTrimmer_ConsumerIsMissing_RemovesNothing$",
	},
	{
		name: "trim-ignores-claim-checks", wrong: "an event is removed that a dead letter is a claim check for", trap: "3",
		file: "internal/events/trim.go",
		old:  "			needed[l.Pointer.Seq] = struct{}{}\n",
		new:  "",
		pkg:  "./internal/events", run: "^TestTrimmer_DeadLetterIsAClaimCheck_KeepsItsEventOnly$",
	},
	{
		name: "trim-of-another-stream", wrong: "events of a new stream are removed by the sequences of the one before", trap: "3",
		file: "internal/events/trim.go",
		old:  "	if !now.Created.Equal(info.Created) {\n",
		new:  "	if now == nil {\n",
		pkg:  "./internal/events", run: "^TestTrimmer_StreamIsCreatedAgainMeanwhile_RemovesNothing$",
	},
	{
		name: "trim-of-young-events", wrong: "inbound events are removed before their time", trap: "growth",
		file: "internal/events/trim.go",
		old:  "	cutoff := info.TimeStamp.Add(-t.keep)\n",
		new:  "	cutoff := info.TimeStamp\n",
		pkg:  "./internal/events", run: "^TestTrimmer_EventIsYoung_KeepsIt$",
	},
	{
		name: "rev-begins-again", wrong: "a rev that has ended begins with the same number again, so a reader of before is not refused", trap: "2",
		file: "internal/holds/lua/prelude.lua",
		old:  "redis.call('SET', rev, int(time[1] * 1000000 + time[2]), 'NX', 'PX', REV_MS)",
		new:  "redis.call('SET', rev, '0', 'NX', 'PX', REV_MS)",
		pkg:  "./internal/holds", run: "^TestRev_EndedSinceItWasRead_RefusesTheReader$",
	},
	{
		name: "rev-without-end", wrong: "the count of a resource's changes stays for ever", trap: "growth",
		file: "internal/holds/lua/prelude.lua",
		old:  "  redis.call('PEXPIRE', rev, REV_MS)\n",
		new:  "",
		pkg:  "./internal/holds", run: "^TestRev_NoChangeForAnHour_Ends$",
	},
	{
		name: "past-nights-of-reservations", wrong: "the row of a past night is removed although a reservation uses it", trap: "1",
		file: "internal/store/queries/nights_drop.sql",
		old:  "        AND reserved = 0\n    ORDER BY resource_id, slot\n    LIMIT $2\n)\nDELETE FROM inventory AS i USING past\nWHERE i.resource_id = past.resource_id AND i.slot = past.slot AND i.reserved = 0\n",
		new:  "    ORDER BY resource_id, slot\n    LIMIT $2\n)\nDELETE FROM inventory AS i USING past\nWHERE i.resource_id = past.resource_id AND i.slot = past.slot\n",
		pkg:  "./internal/store", run: "^TestDropPastNights_NothingIsReservedOfThem_DropsThem$",
	},
	{
		name: "tombstones-for-ever", wrong: "records of holds that have ended are never dropped", trap: "growth",
		file: "internal/holds/lua/prelude.lua",
		old:  "  redis.call('ZADD', prefix .. 'tombstones', now + memory_ms, id)\n",
		new:  "  redis.call('ZADD', prefix .. 'tombstones', 9e15, id)\n",
		pkg:  "./internal/holds", run: "^TestYear_EveryKindOfEventAllTheTime_NothingGrows$",
	},
	{
		name: "claim-not-reported", wrong: "a claim whose payment is never answered is reported by no worker", trap: "growth",
		file: "internal/audit/lua/prelude.lua",
		old:  "now - hold.ended > CLAIM_MS",
		new:  "now - hold.ended > 9e15",
		pkg:  "./internal/audit", run: "^TestReconciler_PaymentIsNotAnswered_IsReportedAfterADay$",
	},
}
