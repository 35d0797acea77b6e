package lua

// Runs returns how many runs calls take, on a cluster or not.
func Runs(calls []*Call, cluster bool) int { return len(packed(calls, cluster)) }
