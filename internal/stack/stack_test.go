package stack_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// all selects every server. A missing program is an error, because tests install nothing.
var all = stack.Options{NATS: true, Redis: true, Postgres: true, NoInstall: true}

// put writes word into each server of s that was started.
func put(t *testing.T, s *stack.Stack, word string) {
	t.Helper()
	ctx := t.Context()
	if s.NATSURL != "" {
		js := stacktest.ConnectNATS(t, s.NATSURL)
		config := jetstream.StreamConfig{Name: "WORDS", Subjects: []string{"words"}}
		_, err := js.CreateOrUpdateStream(ctx, config)
		stacktest.Must(t, err)
		_, err = js.Publish(ctx, "words", []byte(word))
		stacktest.Must(t, err)
	}
	if s.RedisURL != "" {
		stacktest.Must(t, stacktest.ConnectRedis(t, s.RedisURL).Set(ctx, "word", word, 0).Err())
	}
	if s.PostgresURL != "" {
		conn := stacktest.ConnectPostgres(t, s.PostgresURL)
		stacktest.Exec(t, conn, "create table words (word text)")
		stacktest.Exec(t, conn, "insert into words values ($1)", word)
	}
}

// wantWord checks that each server of s that was started has word.
func wantWord(t *testing.T, s *stack.Stack, word string) {
	t.Helper()
	ctx := t.Context()
	if s.NATSURL != "" {
		js := stacktest.ConnectNATS(t, s.NATSURL)
		var msg *jetstream.RawStreamMsg
		var err error
		stacktest.Eventually(t, "a leader that knows the stream", func() bool { // one that was just elected may not
			var stream jetstream.Stream
			if stream, err = js.Stream(ctx, "WORDS"); err == nil {
				msg, err = stream.GetLastMsgForSubject(ctx, "words")
			}
			return !errors.Is(err, jetstream.ErrStreamNotFound)
		})
		if err != nil || string(msg.Data) != word {
			t.Errorf("NATS has %v, %v; want %q", msg, err, word)
		}
	}
	if s.RedisURL != "" {
		if got, err := stacktest.ConnectRedis(t, s.RedisURL).Get(ctx, "word").Result(); err != nil || got != word {
			t.Errorf("Redis has %q, %v; want %q", got, err, word)
		}
	}
	if s.PostgresURL != "" {
		var got string
		if err := stacktest.ConnectPostgres(t, s.PostgresURL).QueryRow(ctx, "select word from words").Scan(&got); err != nil || got != word {
			t.Errorf("Postgres has %q, %v; want %q", got, err, word)
		}
	}
}

func TestStart_Temporary_CloseRemovesAll(t *testing.T) {
	t.Parallel()
	s := stacktest.Start(t, all)
	put(t, s, "hold")
	wantWord(t, s, "hold")
	pids := []int{s.RedisPID(), s.PostgresPID()}
	data := showPostgres(t, s, "data_directory")

	stacktest.Must(t, s.Close())
	for _, pid := range pids {
		if stacktest.Alive(pid) {
			t.Errorf("process %d lives after Close", pid)
		}
	}
	if _, err := os.Stat(filepath.Dir(data)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary directory %s after Close: %v, want ErrNotExist", filepath.Dir(data), err)
	}
	if err, open := <-s.Failed(); err != nil || open {
		t.Errorf("Failed after Close: %v, open %v; want it closed", err, open)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func showPostgres(t *testing.T, s *stack.Stack, setting string) string {
	t.Helper()
	var v string
	stacktest.Must(t, stacktest.ConnectPostgres(t, s.PostgresURL).QueryRow(t.Context(), "select current_setting($1)", setting).Scan(&v))
	return v
}

func TestStart_SomeServers_StartsOnlyThem(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]stack.Options{
		"nothing": {},
		"nats":    {NATS: true},
		"cluster": {NATS: true, Cluster: true},
		"redis":   {Redis: true, NoInstall: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stacktest.Start(t, o)
			if (s.NATSURL != "") != o.NATS || (s.RedisURL != "") != o.Redis || (s.PostgresURL != "") != o.Postgres {
				t.Errorf("URLs %q %q %q for %+v", s.NATSURL, s.RedisURL, s.PostgresURL, o)
			}
			put(t, s, name)
			wantWord(t, s, name)
		})
	}
}

func TestStart_SeveralStacks_RunSideBySide(t *testing.T) {
	t.Parallel()
	words := []string{"one", "two", "three"}
	stacks := make([]*stack.Stack, len(words))
	var wg sync.WaitGroup
	for i := range stacks {
		wg.Go(func() {
			s, err := stack.Start(t.Context(), all)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { stacktest.Must(t, s.Close()) })
			stacks[i] = s
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i, s := range stacks {
		put(t, s, words[i])
	}
	for i, s := range stacks {
		wantWord(t, s, words[i])
	}
}

func TestStart_TemporaryAndDurable_SyncSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ dir, fsync, appendonly string }{
		"temporary": {"", "off", "no"},
		"durable":   {stacktest.DataDir(t), "on", "yes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := all
			o.Dir = c.dir
			s := stacktest.Start(t, o)
			if got := showPostgres(t, s, "fsync"); got != c.fsync {
				t.Errorf("postgres fsync = %s, want %s", got, c.fsync)
			}
			got, err := stacktest.ConnectRedis(t, s.RedisURL).ConfigGet(t.Context(), "appendonly").Result()
			if err != nil || got["appendonly"] != c.appendonly {
				t.Errorf("redis appendonly = %v, %v, want %s", got, err, c.appendonly)
			}
		})
	}
}

func TestStart_DirGiven_DataSurvives(t *testing.T) {
	t.Parallel()
	o := all
	o.Dir = stacktest.DataDir(t)
	s := stacktest.Start(t, o)
	put(t, s, "kept")
	stacktest.Must(t, s.Close())
	wantWord(t, stacktest.Start(t, o), "kept")
}

func TestStart_DirInUse_Refused(t *testing.T) {
	t.Parallel()
	o := stack.Options{Dir: stacktest.DataDir(t), NATS: true}
	s := stacktest.Start(t, o)
	if second, err := stack.Start(t.Context(), o); !errors.Is(err, stack.ErrInUse) {
		t.Errorf("second Start on the directory = %v, %v; want ErrInUse", second, err)
	}
	stacktest.Must(t, s.Close())
	stacktest.Start(t, o)
}

func TestStart_ContextCancelled_Fails(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := stack.Start(ctx, all); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with a cancelled context = %v, %v", s, err)
	}
}
