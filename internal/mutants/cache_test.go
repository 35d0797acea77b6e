package mutants

// ofCache are mutants of the decision in one step, on inventory rows that the worker has in memory.
var ofCache = []mutant{
	{
		name: "stale-row-used", wrong: "rows stay in memory while changes may have been missed", trap: "2",
		file: "internal/holds/rows.go",
		old:  "\tc.heardAt = time.Time{}\n\tclear(c.resources)\n\tc.slots = 0\n",
		new:  "\tc.heardAt = time.Time{}\n",
		pkg:  "./internal/holds", run: "^TestPlace_RowsMayHaveChanged_ReadsPostgres$",
	},
	{
		name: "read-before-listening-cached", wrong: "rows that were read before the worker listened are kept", trap: "2",
		file: "internal/holds/rows.go",
		old:  "\tif period != c.listening || c.heardAt.IsZero()",
		new:  "\tif c.heardAt.IsZero()",
		pkg:  "./internal/holds", run: "^TestPlace_ReadBeforeListening_IsNotCached$",
	},
	{
		name: "notification-missed", wrong: "rows are used however long ago changes were last heard", trap: "2",
		file: "internal/holds/rows.go",
		old:  "s.placeCall(g, token, read, readAge, rows)",
		new:  "s.placeCall(g, token, read, time.Hour, rows)",
		pkg:  "./internal/holds", run: "^TestPlace_RowsMayHaveChanged_ReadsPostgres$",
	},
	{
		name: "proof-before-changes", wrong: "the worker's own notification is handled before those that came with it", trap: "2",
		file: "internal/store/watch.go",
		old:  "\t\tif err == nil && len(resources) > 0 {\n\t\t\terr = w.InventoryChanged(ctx, resources...)\n\t\t}\n",
		new:  "\t\tif err == nil && len(resources) > 0 {\n\t\t\tdefer func() { _ = w.InventoryChanged(ctx, resources...) }()\n\t\t}\n",
		pkg:  "./internal/store", run: "^TestWatch_ChangesBeforeAProof_AreReportedBeforeIt$",
	},
	{
		name: "lock-of-another-ignored", wrong: "a decision in one step ignores that another holds the lock of a slot", trap: "the lock",
		file: "internal/holds/lua/place.lua",
		old:  "if token == '*' and live or",
		new:  "if",
		pkg:  "./internal/holds", run: "^TestPlace_SlotLockedByAnother_WaitsForIt$",
	},
	{
		name: "epoch-of-the-first", wrong: "the calls of a run are decided by the epoch of the first partition", trap: "7",
		file: "internal/holds/lua/prelude.lua",
		old:  "  if EPOCH ~= KEYS[1] then\n",
		new:  "  if not EPOCH then\n",
		pkg:  "./internal/holds", run: "^TestPlace_OnePartitionLost_RefusesOnlyItsOwn$",
	},
}
