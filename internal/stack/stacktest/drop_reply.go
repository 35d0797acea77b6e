package stacktest

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// ErrReplyDropped is what a client sees of a command that was done and whose reply was lost.
var ErrReplyDropped = errors.New("the reply was lost")

// DropReply lets the n-th round trip from now that begins with one of the commands be done, and
// then loses its reply.
func DropReply(client *redis.Client, n int32, commands ...string) {
	hook := &replyDropper{commands: commands}
	hook.left.Store(n)
	client.AddHook(hook)
}

type replyDropper struct {
	commands []string
	left     atomic.Int32
}

func (l *replyDropper) now(c redis.Cmder, err error) bool {
	return err == nil && slices.Contains(l.commands, c.Name()) && l.left.Add(-1) == 0
}

func (*replyDropper) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (l *replyDropper) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		err := next(ctx, c)
		if l.now(c, err) {
			c.SetErr(ErrReplyDropped)
			return ErrReplyDropped
		}
		return err
	}
}

func (l *replyDropper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		err := next(ctx, commands)
		if len(commands) > 0 && l.now(commands[0], err) {
			for _, c := range commands {
				c.SetErr(ErrReplyDropped)
			}
			return ErrReplyDropped
		}
		return err
	}
}
