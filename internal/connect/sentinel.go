package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// All Sentinels are asked at once. sentinelWithin bounds the question to one of them, and othersWithin the wait for others
// when one has answered.
const (
	sentinelWithin = 500 * time.Millisecond
	othersWithin   = 100 * time.Millisecond
)

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

// named is a server that a Sentinel names as the primary. epoch grows with each failover.
type named struct {
	addr  string
	epoch int64
	err   error
}

// find returns the address of the primary. Of the Sentinels that answer it believes the one that knows of the latest
// failover: one that is cut off from the others may name a former primary that still takes itself for one.
func (s *sentinels) find(ctx context.Context) (addr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sentinelWithin)
	defer cancel()
	answers := make(chan named, len(s.addrs))
	for _, sentinel := range s.addrs {
		go func() { answers <- s.ask(ctx, sentinel) }() // ends within sentinelWithin
	}
	latest := named{epoch: -1}
	var enough <-chan time.Time
	var errs []error
collect:
	for range s.addrs {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
			} else if enough == nil {
				enough = time.After(othersWithin)
			}
			if a.err == nil && a.epoch > latest.epoch {
				latest = a
			}
		case <-enough:
			break collect
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("%s: %w", strings.Join(s.addrs, ", "), ctx.Err()))
			break collect
		}
	}
	if latest.addr == "" {
		return "", fmt.Errorf("no Sentinel names a primary: %w", errors.Join(errs...))
	}
	return latest.addr, nil
}

// ask returns the primary as one Sentinel knows it. A Sentinel that requires a login
// gets that of the primary; others never see it.
func (s *sentinels) ask(ctx context.Context, sentinel string) named {
	found, err := s.askWith(ctx, sentinel, "", "")
	if err != nil && strings.Contains(err.Error(), "NOAUTH") && s.options.Password != "" {
		found, err = s.askWith(ctx, sentinel, s.options.Username, s.options.Password)
	}
	if errors.Is(err, redis.Nil) {
		err = fmt.Errorf("it does not monitor %q", s.primary)
	}
	if err != nil {
		return named{err: fmt.Errorf("%s: %w", sentinel, err)}
	}
	return found
}

func (s *sentinels) askWith(ctx context.Context, sentinel, user, password string) (named, error) {
	client := redis.NewSentinelClient(&redis.Options{
		Addr: sentinel, Username: user, Password: password, TLSConfig: s.options.TLSConfig,
		DialTimeout: sentinelWithin, ReadTimeout: sentinelWithin, WriteTimeout: sentinelWithin,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { _ = client.Close() }() // the answer has been read
	found, err := client.GetMasterAddrByName(ctx, s.primary).Result()
	if err != nil {
		return named{}, err
	}
	if len(found) != 2 {
		return named{}, fmt.Errorf("unexpected answer with %d elements", len(found))
	}
	// The user may lack the permission for SENTINEL MASTER. Then epoch is 0, and the answer counts as the oldest.
	epoch, _ := strconv.ParseInt(client.Master(ctx, s.primary).Val()["config-epoch"], 10, 64)
	return named{addr: net.JoinHostPort(found[0], found[1]), epoch: epoch}, nil
}
