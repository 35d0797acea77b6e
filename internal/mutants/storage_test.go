package mutants

// ofStorage are mutants of what Postgres keeps and in which order.
var ofStorage = []mutant{
	{
		name: "inventory-by-clock", wrong: "of two inventory.set events the one with the later time wins, not the one stored later", trap: "3",
		file: "internal/store/queries/inventory_set.sql",
		old:  "                WHEN i.set_in_stream_at = i.set_by_event_at\n",
		new:  "                WHEN i.set_in_stream_at = i.set_by_event_at AND false\n",
		pkg:  "./internal/store", run: "^TestInventoryInStreamOrder$",
	},
	{
		name: "inventory-of-the-stream-before", wrong: "an inventory.set is ordered as one of the stream that was deleted", trap: "3",
		file: "internal/events/stored.go",
		old:  "if created, err = l.streamMade(ctx); err == nil {\n",
		new:  "if created = *l.streamCreated.Load(); true {\n",
		pkg:  "./internal/events", run: "^TestInventorySet_StreamCreatedAgain_IsLater$",
	},
	{
		name: "validated-by-the-policy-of-now", wrong: "an event that is delivered again is validated by another policy than before", trap: "3",
		file: "internal/holds/service.go",
		old:  "	return s.policies.At(storedAt)\n",
		new:  "	return s.policies.At(storedAt.AddDate(1, 0, 0))\n",
		pkg:  "./internal/holds", run: "^TestPolicyChanged_EventIsDeliveredAgain_SameAnswer$",
	},
	{
		name: "published-under-the-policy-before", wrong: "a worker publishes what it decided by a policy that it has read too long ago", trap: "3",
		file: "internal/holds/tenure.go",
		old:  "		case trusted && versioned && version != current:\n",
		new:  "		case trusted && versioned && version > current:\n",
		pkg:  "./internal/holds", run: "^TestPolicyChanged_EventIsDeliveredAgain_SameAnswer$",
	},
	{
		name: "rebuilt-by-the-policy-of-now", wrong: "a rebuild reads as far back as a hold may live now, not as it could when it was created", trap: "7",
		file: "internal/holds/policy.go",
		old:  "			life = max(life, one.HoldLifetimeMax)\n",
		new:  "			life = one.HoldLifetimeMax\n",
		pkg:  "./internal/holds", run: "^TestRebuild_LifetimeShortened_ReadsAsFarBackAsHoldsLive$",
	},
	{
		name: "reserved-slot-deleted", wrong: "an inventory row is deleted while something of it is reserved", trap: "1",
		file: "internal/store/migrations/00007_reserved_slots_stay.sql",
		old:  "    WHEN (old.reserved > 0) EXECUTE",
		new:  "    WHEN (old.reserved < 0) EXECUTE",
		pkg:  "./internal/store", run: "^TestDeleteSlot_Reserved_IsRefused$",
	},
	{
		name: "new-slot-forgets-reservations", wrong: "an inventory row that is inserted again begins with nothing reserved", trap: "1",
		file: "internal/store/migrations/00007_reserved_slots_stay.sql",
		old:  "        WHERE r.status = 'confirmed'\n",
		new:  "        WHERE r.status = 'unconfirmed'\n",
		pkg:  "./internal/store", run: "^TestInsertSlot_ReservationsExist_BeginsWithThem$",
	},
	{
		name: "poison-taken-for-a-release", wrong: "a rebuild takes a cancellation that was dead-lettered for one that waits, and releases its hold", trap: "7",
		file: "internal/events/chronicle.go",
		old:  "	for _, w := range cancellations {\n		if !dead[w.seq] {\n",
		new:  "	for _, w := range cancellations {\n		if w.in != nil {\n",
		pkg:  "./internal/events", run: "^TestWaiting_DeadLetteredEvents_DoNotWait$",
	},
}
