package lua

// Runs returns the number of runs into which calls are packed.
func Runs(calls []*Call, cluster bool) int { return len(packed(calls, cluster)) }
