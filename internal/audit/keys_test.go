package audit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/record"
)

// TestRun_UnknownKeys_LeftAlone writes unknown keys. They are left alone and counted, unlike those of a rebuild.
func TestRun_UnknownKeys_LeftAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.redis.ZAdd(ctx, record.Keyspace(s.namespace).Folds(record.Partition("hall")), redis.Z{Member: "hall"}) // of a rebuild
	s.redis.HSet(ctx, record.Keyspace(s.namespace).Fold("hall"), uuidOf(s.live), "{}")
	s.redis.Set(ctx, s.key("hall", "colour"), "red", 0)
	s.redis.Set(ctx, fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, (record.Partition("hall")+1)%record.Partitions),
		"red", 0)
	s.redis.ZAdd(ctx, s.agenda("hall"), redis.Z{Score: 1, Member: "no resource\n"})
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive,
		"\n"); text != "keys or entries in redis that are unknown to this version: 3" {
		t.Errorf("inconclusive:\n%s", text)
	}
}
