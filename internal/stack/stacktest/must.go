package stacktest

// Must ends a test whose step has failed. What a test is about has a message of its own instead.
func Must(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
