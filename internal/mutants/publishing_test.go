package mutants

// ofPublishing are mutants of what publishers learn about their events and slots.
var ofPublishing = []mutant{
	{
		name: "detail-repeats-value", wrong: "the detail of a dead letter repeats the value that it finds wrong, and is logged", trap: "values may be private",
		file: "internal/events/members.go",
		old:  "		r.failFound(name, want, KindName(value))\n",
		new:  "		r.failFound(name, want, string(value))\n",
		pkg:  "./internal/events", run: "^TestDetail_BadMember_NamesNoValue$",
	},
	{
		name: "another-namespace-s-slots", wrong: "what can be had of slots is asked of the workers of another namespace", trap: "namespaces share servers",
		file: "internal/events/service.go",
		old:  "	ask := nats.NewMsg(c.ns.Service(EndpointAvailability))\n",
		new:  "	ask := nats.NewMsg(Subjects(\"holdfast\").Service(EndpointAvailability))\n",
		pkg:  "./cmd/publisher", run: "^TestInventoryShow_OtherNamespace_ShowsThatNamespace$",
	},
}
