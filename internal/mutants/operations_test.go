package mutants

// ofOperations are mutants of what keeps servers that changed, other versions and floods of queries from doing harm.
var ofOperations = []mutant{
	{
		name: "standby-read", wrong: "the first host of the URL that answers is used, a standby that lags too", trap: "2",
		file: "internal/postgres/postgres.go",
		old:  "	config.ConnConfig.ValidateConnect = validate\n",
		new:  "",
		pkg:  "./internal/postgres", run: "^TestConfig_LaggingStandbyIsFirst_PrimaryIsRead$",
	},
	{
		name: "read-only-session-kept", wrong: "sessions that may not write any more are used for ever", trap: "2",
		file: "internal/postgres/postgres.go",
		old:  "return MayWrite(conn) == nil, nil }",
		new:  "return true, nil }",
		pkg:  "./internal/postgres", run: "^TestConfig_PrimaryBecomesReadOnly_SessionsLeaveIt$",
	},
	{
		name: "read-only-session-read", wrong: "what a session reads that may not write any more is decided on", trap: "2",
		file: "internal/store/store.go",
		old:  "		return postgres.MayWrite(conn.Conn())\n",
		new:  "		return nil\n",
		pkg:  "./internal/store", run: "^TestRead_SessionBecomesReadOnly_IsRefusedAndClosed$",
	},
}
