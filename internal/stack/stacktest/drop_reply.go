package stacktest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// ErrReplyDropped is the error of a command that Redis has executed and whose reply was dropped.
var ErrReplyDropped = errors.New("reply dropped")

// DropReply drops the reply to the n-th command or pipeline from now on whose first command is one of
// commands. Redis executes it.
func DropReply(client *redis.Client, n int32, commands ...string) {
	hook := &replyDropper{commands: commands}
	hook.left.Store(n)
	client.AddHook(hook)
}

// PassHook is a redis.Hook that passes everything on. The hooks of tests embed it.
type PassHook struct{}

// DialHook implements redis.Hook, as the others do.
func (PassHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (PassHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (PassHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type replyDropper struct {
	PassHook
	commands []string
	left     atomic.Int32
}

// drops reports whether to drop the reply to a command, which returned err.
func (l *replyDropper) drops(c redis.Cmder, err error) bool {
	return err == nil && slices.Contains(l.commands, c.Name()) && l.left.Add(-1) == 0
}

func (l *replyDropper) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		err := next(ctx, c)
		if l.drops(c, err) {
			c.SetErr(ErrReplyDropped)
			return ErrReplyDropped
		}
		return err
	}
}

func (l *replyDropper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		err := next(ctx, commands)
		if len(commands) > 0 && l.drops(commands[0], err) {
			for _, c := range commands {
				c.SetErr(ErrReplyDropped)
			}
			return ErrReplyDropped
		}
		return err
	}
}
