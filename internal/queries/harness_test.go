package queries

import (
	"testing"

	"holdfast/internal/stack/stacktest"
)

func TestMain(m *testing.M) { stacktest.Main(m) }
