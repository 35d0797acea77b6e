package mutants

// ofGrowth are mutants of what removes what nobody needs any more.
var ofGrowth = []mutant{
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
}
