package recovery

import "time"

// failure is the last failure of something that is tried again and again, as last logged. The zero value is none.
type failure struct {
	text string
	at   time.Time
}

// failureEvery is the least time between two logs of one outage: the texts of its errors often alternate.
const failureEvery = time.Minute

// isNew reports whether an error is to be logged: the first one of an outage, and any that differs later. No error ends
// the outage.
func (f *failure) isNew(err error) bool {
	if err == nil {
		*f = failure{}
		return false
	}
	if f.text != "" && (f.text == err.Error() || time.Since(f.at) < failureEvery) {
		return false
	}
	*f = failure{err.Error(), time.Now()}
	return true
}
