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

// Format numbers the form in which the scripts keep holds in Redis. It is raised by a change of that form that a
// program which knows only the one before would misread: such programs then refuse to start, and those that run stop
// (see Keeper). A program reads the forms of all lower numbers. What is only added does not raise it.
const Format = 1

// FormatDrain is how long programs that know only the format before may still decide after a higher one is noted:
// the time between two checks of a Keeper, and of one check.
const FormatDrain = termValidity + publishDelayMax

// ErrUnknownFormat says that a Redis has a format that this program does not know.
var ErrUnknownFormat = errors.New("redis is written by newer scripts than this program has")

// scriptFormat notes a format unless a higher one is noted. What is not a string was not noted.
//
// KEYS  1 format  ARGV  1 the format
// Returns ok format raised: what is noted now; 1 if a lower one was noted before
var scriptFormat = lua.New("format", "", `
local noted, raised = redis.pcall('GET', KEYS[1]), '0'
if type(noted) ~= 'string' or tonumber(noted) and tonumber(noted) < tonumber(ARGV[1]) then
  if type(noted) == 'string' then raised = '1' end
  redis.call('SET', KEYS[1], ARGV[1])
  noted = ARGV[1]
end
return {'ok', noted, raised}
`)

// ReadFormat returns the format that is noted, 0 = none is, as before the first one was. It returns
// ErrUnknownFormat for one that this program does not know.
func ReadFormat(ctx context.Context, namespace string, client redis.UniversalClient) (int, error) {
	noted, err := client.Get(ctx, record.Keyspace(namespace).Format()).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the format: %w", err)
	}
	return knownFormat(noted)
}

// WriteFormat notes the format in which this program is about to write. It returns ErrUnknownFormat,
// and has changed nothing, when a higher one is noted. After raised the caller waits FormatDrain before it writes.
func WriteFormat(ctx context.Context, namespace string, client redis.UniversalClient) (raised bool, err error) {
	c := &lua.Call{Script: scriptFormat, Keys: []string{record.Keyspace(namespace).Format()}, Args: []any{Format}}
	lua.Run(ctx, client, []*lua.Call{c})
	if err := c.Expect(2); err != nil {
		return false, fmt.Errorf("note the format: %w", err)
	}
	_, err = knownFormat(c.Reply[0])
	return err == nil && c.Reply[1] == "1", err
}

func knownFormat(noted string) (int, error) {
	format, err := strconv.Atoi(noted)
	if err != nil || format < 1 || format > Format {
		return format, fmt.Errorf("%w: format %.20q, and this program knows up to %d", ErrUnknownFormat, noted, Format)
	}
	return format, nil
}
