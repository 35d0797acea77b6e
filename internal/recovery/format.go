package recovery

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// Format numbers the form in which holds are stored in Redis. A change that older programs would
// misread raises it: such programs then refuse to start, and those that run stop (see Supervisor). A
// program reads the forms of all lower numbers. Code that raises the number must first wait until all older
// programs have stopped. A change that only adds keys or fields does not raise it.
const Format = 1

// ErrUnknownFormat says that Redis has a format that this program does not know.
var ErrUnknownFormat = errors.New("the data format of redis is newer than this program")

// scriptFormat writes a format unless a higher one is stored. A value that is not a string counts as
// missing.
//
// KEYS  1 format  ARGV  1 the format
// Returns ok format: the format that is stored now
var scriptFormat = lua.New("format", allowOOM, `
local stored = redis.pcall('GET', KEYS[1])
if type(stored) ~= 'string' or tonumber(stored) and tonumber(stored) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  stored = ARGV[1]
end
return {'ok', stored}
`)

// ReadFormat returns the stored format, 0 when none is stored. It returns ErrUnknownFormat for a
// format that this program does not know.
func ReadFormat(ctx context.Context, namespace string, client redis.UniversalClient) (int, error) {
	stored, err := client.Get(ctx, record.Keyspace(namespace).Format()).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the format: %w", err)
	}
	return parseFormat(stored)
}

// WriteFormat stores the format in which this program is about to write. It returns ErrUnknownFormat,
// and changes nothing, when a higher one is stored.
func WriteFormat(ctx context.Context, namespace string, client redis.UniversalClient) error {
	c := &lua.Call{Script: scriptFormat, Keys: []string{record.Keyspace(namespace).Format()}, Args: []any{Format}}
	lua.Run(ctx, client, []*lua.Call{c})
	if err := c.Expect(1); err != nil {
		return fmt.Errorf("write the format: %w", err)
	}
	_, err := parseFormat(c.Reply[0])
	return err
}

// parseFormat returns ErrUnknownFormat for a format that this program does not know.
func parseFormat(stored string) (int, error) {
	format, err := strconv.Atoi(stored)
	if err != nil || format < 1 || format > Format {
		return format, fmt.Errorf("%w: format %.20q, this program knows up to %d", ErrUnknownFormat, stored, Format)
	}
	return format, nil
}
