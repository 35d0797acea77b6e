package recovery

// What a term does about corruption.
const (
	HealWithin               = healWithin
	CorruptionForgottenAfter = corruptionForgottenAfter
	CorruptionsMax           = corruptionsMax
)

// TakeMismatch and TakeCorruption are takeMismatch and takeCorruption.
func (t *EpochTerm) TakeMismatch(epoch string) bool    { return t.takeMismatch(epoch) }
func (t *EpochTerm) TakeCorruption(epoch string) error { return t.takeCorruption(epoch) }

// AgeCorruptions makes all corruption that was reported old enough to invalidate the epoch when it is found again.
func (t *EpochTerm) AgeCorruptions() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.corruptions {
		d.first = d.first.Add(-healWithin)
	}
}
