package connect_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
	"holdfast/internal/stack/stacktest"
)

// TestSentinel_PrimaryKilled_ConnectionsLeadToReplica kills a primary. New connections lead to the
// replica that the Sentinel has promoted, although another Sentinel is down.
func TestSentinel_PrimaryKilled_ConnectionsLeadToReplica(t *testing.T) {
	t.Parallel()
	primary, _ := redisWith(t)
	replica, _ := redisWith(t)
	stacktest.ReplicaOf(t, replica, primary)
	sentinel := stacktest.StartSentinel(t, "main", primary.Options().Addr, nil)
	stacktest.AwaitReplica(t, sentinel)
	options, err := connect.RedisOptions("redis+sentinel://127.0.0.1:1,"+sentinel+"/main", connect.TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	options.MaxRetries = -1
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Set(t.Context(), "key", "before", 0).Err(); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "replication", func() bool { return replica.Get(t.Context(), "key").Val() == "before" })
	stacktest.KillRedis(t, primary)
	stacktest.Eventually(t, "writes to succeed", func() bool { return client.Set(t.Context(), "key", "after", 0).Err() == nil })
	if found := replica.Get(t.Context(), "key").Val(); found != "after" {
		t.Errorf("the promoted replica has %q: the write went elsewhere", found)
	}
}

// TestSentinel_NamesReplica_Refused connects while the Sentinel names a server that has become a
// replica.
func TestSentinel_NamesReplica_Refused(t *testing.T) {
	t.Parallel()
	former, _ := redisWith(t)
	other, _ := redisWith(t)
	sentinel := stacktest.StartSentinel(t, "main", former.Options().Addr, nil)
	stacktest.ReplicaOf(t, former, other)
	err := ping(t, "redis+sentinel://"+sentinel+"/main", connect.TLSFiles{})
	if err == nil || !strings.Contains(err.Error(), "no primary") {
		t.Errorf("connected to a replica: %v", err)
	}
}

// TestSentinel_CutOff_LatestFailoverCounts has a Sentinel that names a former primary, which still takes itself for one, and
// another Sentinel that knows of a later failover. Both orders of them lead to the same primary.
func TestSentinel_CutOff_LatestFailoverCounts(t *testing.T) {
	t.Parallel()
	former, _ := redisWith(t)
	promoted, _ := redisWith(t)
	cutOff := stacktest.StartSentinel(t, "main", former.Options().Addr, nil, "sentinel config-epoch main 3")
	latest := stacktest.StartSentinel(t, "main", promoted.Options().Addr, nil, "sentinel config-epoch main 4")
	for _, addrs := range []string{cutOff + "," + latest, latest + "," + cutOff + ",127.0.0.1:1"} {
		options, err := connect.RedisOptions("redis+sentinel://"+addrs+"/main", connect.TLSFiles{})
		if err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(options)
		t.Cleanup(func() { _ = client.Close() })
		if err := client.Set(t.Context(), addrs, "", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if promoted.Exists(t.Context(), addrs).Val() != 1 {
			t.Errorf("%s: connected to the former primary", addrs)
		}
	}
}

// TestSentinel_Unusable_ErrorSaysWhy connects to Sentinels that do not answer or do not know the
// name.
func TestSentinel_Unusable_ErrorSaysWhy(t *testing.T) {
	t.Parallel()
	primary, _ := redisWith(t)
	sentinel := stacktest.StartSentinel(t, "main", primary.Options().Addr, nil)
	for address, want := range map[string]string{
		"redis+sentinel://ann:s3cret@127.0.0.1:1/main":               "127.0.0.1:1",
		"redis+sentinel://ann:s3cret@127.0.0.1:1," + sentinel + "/x": fmt.Sprintf("%s: it does not monitor %q", sentinel, "x"),
	} {
		expectError(t, address, ping(t, address, connect.TLSFiles{}), want)
	}
}

// TestSentinel_LoginAndTLS_SentinelAndRedis connects to a Sentinel and a Redis that require the same
// login and TLS.
func TestSentinel_LoginAndTLS_SentinelAndRedis(t *testing.T) {
	t.Parallel()
	ca := stacktest.TestCA(t)
	_, conn := redisWith(t)
	url, err := ca.SecureRedis(t.Context(), conn, "optional")
	if err != nil {
		t.Fatal(err)
	}
	do(t, conn, "ACL", "SETUSER", "ann", "on", ">s3cret", "+@all", "~*", "&*")
	do(t, conn, "ACL", "SETUSER", "default", "off")
	addr := strings.TrimSuffix(strings.TrimPrefix(url, "rediss://"), "/0")
	sentinel := stacktest.StartSentinel(t, "main", addr, ca, "user ann on >s3cret +@all ~* &*", "user default off",
		"sentinel auth-user main ann", "sentinel auth-pass main s3cret")
	for _, c := range []struct {
		login string
		files connect.TLSFiles
		want  string
	}{
		{"ann:s3cret@", connect.TLSFiles{CA: ca.File}, ""},
		{"ann:wrong@", connect.TLSFiles{CA: ca.File}, "WRONGPASS"},
		{"", connect.TLSFiles{CA: ca.File}, "NOAUTH"},
		{"ann:s3cret@", connect.TLSFiles{}, "unknown authority"},
	} {
		expectError(t, fmt.Sprintf("%q %+v", c.login, c.files), ping(t, "rediss+sentinel://"+c.login+sentinel+"/main", c.files), c.want)
	}
}
