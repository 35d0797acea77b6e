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
// program reads the forms of all lower numbers. A change that only adds keys or fields does not raise
// it.
const Format = 1

// FormatDrain is how long programs that only know a lower format may still decide after a higher one
// was written: the time between two checks of a Supervisor, and of one check.
const FormatDrain = termValidity + publishDelayMax

// ErrUnknownFormat says that Redis has a format that this program does not know.
var ErrUnknownFormat = errors.New("the data format of redis is newer than this program")

// scriptFormat writes a format unless a higher one is stored. A value that is not a string counts as
// missing.
//
// KEYS  1 format  ARGV  1 the format
// Returns ok format raised: the format that is stored now; 1 if a lower one was stored before
var scriptFormat = lua.New("format", "", `
local stored, raised = redis.pcall('GET', KEYS[1]), '0'
if type(stored) ~= 'string' or tonumber(stored) and tonumber(stored) < tonumber(ARGV[1]) then
  if type(stored) == 'string' then raised = '1' end
  redis.call('SET', KEYS[1], ARGV[1])
  stored = ARGV[1]
end
return {'ok', stored, raised}
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
// and changes nothing, when a higher one is stored. When raised is true the caller waits FormatDrain
// before it writes.
func WriteFormat(ctx context.Context, namespace string, client redis.UniversalClient) (raised bool, err error) {
	c := &lua.Call{Script: scriptFormat, Keys: []string{record.Keyspace(namespace).Format()}, Args: []any{Format}}
	lua.Run(ctx, client, []*lua.Call{c})
	if err := c.Expect(2); err != nil {
		return false, fmt.Errorf("write the format: %w", err)
	}
	_, err = parseFormat(c.Reply[0])
	return err == nil && c.Reply[1] == "1", err
}

// parseFormat returns ErrUnknownFormat for a format that this program does not know.
func parseFormat(stored string) (int, error) {
	format, err := strconv.Atoi(stored)
	if err != nil || format < 1 || format > Format {
		return format, fmt.Errorf("%w: format %.20q, this program knows up to %d", ErrUnknownFormat, stored, Format)
	}
	return format, nil
}
