package audit_test

import (
	"strings"
	"testing"

	"holdfast/internal/audit"
)

// TestRun_PaymentToPublishAgain_CommandHasItsWholeID finds the answer to a payment that was never published. Its id is as
// long as it may be, and a shell would run a part of it.
func TestRun_PaymentToPublishAgain_CommandHasItsWholeID(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	payment := "p;$(reboot)-" + strings.Repeat("x", 116)
	s.execute(`INSERT INTO payments (hold_id, payment_id, outcome, reason, decided_at, hold) VALUES ($1, $2, 'rejected', 'expired', now(), '{}')`,
		s.expired, payment)
	report := s.audit(audit.Options{})
	want := "publisher pay --hold-id " + s.expired + " --payment-id '" + payment + "'. "
	if len(report.Findings) != 1 || !strings.Contains(report.Findings[0].Remedy, want) {
		t.Errorf("no remedy has %s:\n%s", want, findingsText(report))
	}
}
