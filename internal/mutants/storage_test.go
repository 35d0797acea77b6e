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
}
