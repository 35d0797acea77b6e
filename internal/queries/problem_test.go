package queries

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/holds"
)

// TestProblemOf_ServerSilent_IsNoRebuild asks for resources whose partition waits for a rebuild, or for its server. The answer
// contains the address of no server that is down.
func TestProblemOf_ServerSilent_IsNoRebuild(t *testing.T) {
	t.Parallel()
	for reason, why := range map[string]holds.RebuildingError{
		"rebuilding": {Progress: "reading 127.0.0.1:7001"},
		unavailable:  {Progress: "redis server 127.0.0.1:7001 does not answer", Silent: true},
	} {
		problem := ProblemOf(fmt.Errorf("availability: %w", &why))
		if names := strings.Contains(problem.Detail, "7001"); problem.Reason != reason || names == why.Silent {
			t.Errorf("%+v: answered with %+v", why, problem)
		}
	}
}
