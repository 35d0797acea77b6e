package holds

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// scanBatch is how many keys one SCAN reads.
const scanBatch = 1000

// Remove removes every key of a namespace. No worker may use the namespace meanwhile.
func Remove(ctx context.Context, namespace string, client redis.UniversalClient) error {
	keys := client.Scan(ctx, 0, namespace+":{*", scanBatch).Iterator()
	for keys.Next(ctx) {
		if err := client.Unlink(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("remove key: %w", err)
		}
	}
	if err := keys.Err(); err != nil {
		return fmt.Errorf("scan keys: %w", err)
	}
	return nil
}
