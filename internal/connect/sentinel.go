package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// sentinelWithin bounds the question to one Sentinel. All Sentinels are asked at once.
const sentinelWithin = 500 * time.Millisecond

// sentinels find the primary of a Redis that Sentinels monitor.
type sentinels struct {
	addrs   []string
	primary string         // the name by which the Sentinels know it
	options *redis.Options // of the clients of the primary
}

// attach makes each new connection lead to the primary. A Sentinel that is cut off may name a former
// primary, so each new connection is verified; a client that replaces OnConnect must do the same.
func (s *sentinels) attach() {
	direct := redis.NewDialer(s.options)
	s.options.Addr = "primary " + s.primary // shown in errors
	s.options.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		addr, err := s.find(ctx)
		if err != nil {
			return nil, err
		}
		return direct(ctx, "tcp", addr)
	}
	s.options.OnConnect = verifyPrimary
}

// errNotPrimary is returned for a server that the Sentinels call the primary and that is none.
var errNotPrimary = errors.New("the Sentinels name a server that is no primary: a failover is in progress")

// verifyPrimary returns errNotPrimary for a server that is a replica.
func verifyPrimary(ctx context.Context, conn *redis.Conn) error {
	info, err := conn.Info(ctx, "replication").Result()
	if err == nil && !strings.Contains(info, "role:master\r\n") {
		err = errNotPrimary
	}
	return err
}

// find returns the address of the primary from the first Sentinel that knows it.
func (s *sentinels) find(ctx context.Context) (addr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sentinelWithin)
	defer cancel()
	type answer struct {
		addr string
		err  error
	}
	answers := make(chan answer, len(s.addrs))
	for _, sentinel := range s.addrs {
		go func() { // ends within sentinelWithin
			addr, err := s.ask(ctx, sentinel)
			answers <- answer{addr, err}
		}()
	}
	var errs []error
	for range s.addrs {
		select {
		case a := <-answers:
			if a.err == nil {
				return a.addr, nil
			}
			errs = append(errs, a.err)
		case <-ctx.Done():
			return "", fmt.Errorf("no Sentinel answers: %w", errors.Join(append(errs, ctx.Err())...))
		}
	}
	return "", fmt.Errorf("no Sentinel names a primary: %w", errors.Join(errs...))
}

// ask returns the address of the primary as one Sentinel knows it. A Sentinel that requires a login
// gets that of the primary; others never see it.
func (s *sentinels) ask(ctx context.Context, sentinel string) (string, error) {
	addr, err := s.askWith(ctx, sentinel, "", "")
	if err != nil && strings.Contains(err.Error(), "NOAUTH") && s.options.Password != "" {
		addr, err = s.askWith(ctx, sentinel, s.options.Username, s.options.Password)
	}
	if errors.Is(err, redis.Nil) {
		err = fmt.Errorf("it does not monitor %q", s.primary)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", sentinel, err)
	}
	return addr, nil
}

func (s *sentinels) askWith(ctx context.Context, sentinel, user, password string) (string, error) {
	client := redis.NewSentinelClient(&redis.Options{
		Addr: sentinel, Username: user, Password: password, TLSConfig: s.options.TLSConfig,
		DialTimeout: sentinelWithin, ReadTimeout: sentinelWithin, WriteTimeout: sentinelWithin,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { _ = client.Close() }() // the answer has been read
	found, err := client.GetMasterAddrByName(ctx, s.primary).Result()
	if err != nil {
		return "", err
	}
	if len(found) != 2 {
		return "", fmt.Errorf("unexpected answer with %d elements", len(found))
	}
	return net.JoinHostPort(found[0], found[1]), nil
}
