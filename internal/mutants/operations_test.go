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
	{
		name: "newer-format-ignored", wrong: "a worker goes on deciding after newer scripts have changed what is in Redis", trap: "2",
		file: "internal/holds/keeper.go",
		old:  "return \"\", k.checkFormat(ctx, s.format)",
		new:  "return \"\", nil",
		pkg:  "./cmd/worker", run: "^TestKeeper_NewerVersionChangedWhatIsStored_WorkerEnds$/^redis$",
	},
	{
		name: "newer-schema-ignored", wrong: "a worker goes on deciding after a migration that it cannot work with", trap: "2",
		file: "internal/store/epoch.go",
		old:  "if err == nil && worksFrom > SchemaVersion {",
		new:  "if err == nil && worksFrom < 0 {",
		pkg:  "./cmd/worker", run: "^TestKeeper_NewerVersionChangedWhatIsStored_WorkerEnds$/^postgres$",
	},
	{
		name: "format-not-noted-again", wrong: "after Redis has lost the number of its format older workers go on in it", trap: "2",
		file: "internal/holds/keeper.go",
		old:  "	if noted != \"\" {\n		if format, err",
		new:  "	if noted == \"\" {\n		return nil\n	} else {\n		if format, err",
		pkg:  "./cmd/worker", run: "^TestKeeper_FormatIsLost_IsNotedAgain$",
	},
	{
		name: "newer-schema-refused", wrong: "a worker of the version before refuses to start after a migration that only adds", trap: "rolling back",
		file: "internal/preflight/postgres.go",
		old:  "	case s.Version > known && s.WorksFrom > known:\n",
		new:  "	case s.Version > known:\n",
		pkg:  "./cmd/worker", run: "^TestRun_NewerSchemaThatWorks_WorkerStarts$",
	},
	{
		name: "queries-share-connections", wrong: "queries use the connections that decisions need", trap: "a flood of queries",
		file: "cmd/worker/graph.go",
		old:  "db, err := store.OpenQueries(context.Background(),",
		new:  "db, err := store.Open(context.Background(),",
		pkg:  "./cmd/worker", run: "^TestQueries_Hang_DecisionsGoOn$",
	},
	{
		name: "queries-wait-in-line", wrong: "however many queries there are, all wait by HTTP until they are answered", trap: "a flood of queries",
		file: "cmd/worker/http.go",
		old:  "		default:\n			w.Header().Set(\"Retry-After\", \"1\")\n",
		new:  "		case <-r.Context().Done():\n			w.Header().Set(\"Retry-After\", \"1\")\n",
		pkg:  "./cmd/worker", run: "^TestQueries_Hang_DecisionsGoOn$",
	},
	{
		name: "service-waits-in-line", wrong: "however many queries there are, all wait by NATS until they are answered", trap: "a flood of queries",
		file: "internal/events/service.go",
		old:  "	default:\n		e.failed.Add(1)\n",
		new:  "	case <-e.ctx.Done():\n		e.failed.Add(1)\n",
		pkg:  "./internal/events", run: "^TestQueryService_Full_RefusesAtOnce$",
	},
	{
		name: "slow-reader-served", wrong: "a client that does not read its answer keeps a connection for ever", trap: "deadlines on every request",
		file: "cmd/worker/http.go",
		old:  "WriteTimeout: l.write, ",
		new:  "",
		pkg:  "./cmd/worker", run: "^TestWebLimits_ClientIsTooSlowOrTooLarge_IsDropped$",
	},
}
