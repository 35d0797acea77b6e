package holds

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
)

// scanBatch is how many keys one SCAN reads.
const scanBatch = 1000

// Remove removes every key of a namespace. No worker may use the namespace meanwhile.
func Remove(ctx context.Context, namespace string, client redis.UniversalClient) error {
	servers, err := lua.Primaries(ctx, client)
	if err != nil {
		return fmt.Errorf("find the servers of the cluster: %w", err)
	}
	for _, server := range servers {
		keys := server.Scan(ctx, 0, namespace+":{*", scanBatch).Iterator()
		for keys.Next(ctx) {
			if err := server.Unlink(ctx, keys.Val()).Err(); err != nil {
				return fmt.Errorf("remove key: %w", err)
			}
		}
		if err := keys.Err(); err != nil {
			return fmt.Errorf("scan keys: %w", err)
		}
	}
	return nil
}
