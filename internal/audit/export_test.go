package audit

// InGroups has an audit look at so few messages of the streams at a time.
func InGroups(o Options, messages uint64) Options {
	o.groupMessages = messages
	return o
}

// LookMax is how many records a resource can have that is looked at in one step.
const LookMax = lookMax
