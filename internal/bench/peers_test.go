package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/holds"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// wantOnePlaced places a hold, repeats it, and is refused another one, on nights with room for one.
func wantOnePlaced(t *testing.T, with placer, first peerRequest) {
	t.Helper()
	for range 2 {
		if placed, err := with.place(t.Context(), first); err != nil || !placed {
			t.Errorf("%+v: %t, %v; want a hold", first, placed, err)
		}
	}
	// The last of its nights is the only one that is full.
	full := first
	full.key, full.nights = "another", slices.Clone(first.nights)
	for i := range full.nights {
		night, err := time.Parse(time.DateOnly, full.nights[i])
		if err != nil {
			t.Fatal(err)
		}
		full.nights[i] = night.AddDate(0, 0, len(first.nights)-1).Format(time.DateOnly)
	}
	if placed, err := with.place(t.Context(), full); err != nil || placed {
		t.Errorf("%+v: %t, %v; want a refusal", full, placed, err)
	}
	// A refusal takes nothing: the nights after the full one have room.
	free := full
	free.key, free.nights = "third", full.nights[1:]
	if placed, err := with.place(t.Context(), free); err != nil || !placed {
		t.Errorf("%+v: %t, %v; want a hold", free, placed, err)
	}
}

// earlyRequest returns a request for the first nights of a resource.
func earlyRequest(nights int) peerRequest {
	r := newPeerRequest(7, nights)
	first := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, calendarFrom)
	for i := range r.nights {
		r.nights[i] = first.AddDate(0, 0, i).Format(time.DateOnly)
	}
	return r
}

// TestPeers_RoomForOne_PlaceOneAndRefuse places holds with each peer, on real servers.
func TestPeers_RoomForOne_PlaceOneAndRefuse(t *testing.T) {
	t.Parallel()
	for _, kind := range allPeers {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			b := newRunner(t)
			with, err := kind.open(t.Context(), &peers{b, &durable{postgresURL: b.PostgresURL}}, 1)
			if err != nil {
				t.Fatal(err)
			}
			first := earlyRequest(3)
			if kind.name == PeerScript { // it does not repeat an answer
				if placed, err := with.place(t.Context(), first); err != nil || !placed {
					t.Errorf("%t, %v; want a hold", placed, err)
				}
				if placed, err := with.place(t.Context(), first); err != nil || placed {
					t.Errorf("the same key again: %t, %v; want a refusal", placed, err)
				}
			} else {
				wantOnePlaced(t, with, first)
			}
			if err := with.close(t.Context()); err != nil {
				t.Error(err)
			}
			wantNothingLeft(t, b.Options, b.name)
		})
	}
}

// freePlacer places every hold.
type freePlacer struct{}

func (freePlacer) place(context.Context, peerRequest) (bool, error) { return true, nil }
func (freePlacer) close(context.Context) error                      { return nil }

// TestBest_ServersOfTheRun_SurvivalKnownOfOwnOnesOnly measures what runs on servers of Options, of which it is unknown
// whether they sync, and then on servers that Run has started, which never do.
func TestBest_ServersOfTheRun_SurvivalKnownOfOwnOnesOnly(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		p := &peers{runner: &runner{sizes: allSizes[Tiny]}}
		name, member := HoldfastGiven, ""
		if own {
			p.stack, name, member = &stack.Stack{}, HoldfastUnsynced, `"survives_kill":false`
		}
		_, holdfast := p.holdfasts()
		if holdfast.name != name {
			t.Errorf("own servers %t: %q, want %q", own, holdfast.name, name)
		}
		for _, kind := range append(allPeers[2:], holdfast) {
			figure, err := p.best(t.Context(), kind, freePlacer{}, 3, peerLoads[0])
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(figure)
			if err != nil || strings.Contains(string(text), "survives_kill") != own || !strings.Contains(string(text), member) {
				t.Errorf("%s, own servers %t: %s, %v", kind.name, own, text, err)
			}
		}
	}
}

// TestHoldfast_RoomForOne_PlacesOneAndRefuses is the same for Holdfast, with events one by one and in atomic
// batches.
func TestHoldfast_RoomForOne_PlacesOneAndRefuses(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprintf("together %t", together), func(t *testing.T) {
			t.Parallel()
			s := newCluster(t)
			if err := s.setInventory(t.Context(), 8); err != nil {
				t.Fatal(err)
			}
			_, err := s.pool.Exec(t.Context(), "UPDATE "+string(s.ns)+".inventory SET capacity = 1 WHERE resource_id = 'r00007'")
			if err != nil {
				t.Fatal(err)
			}
			if together {
				in, err := s.js.Stream(t.Context(), s.ns.InStream())
				if err != nil {
					t.Fatal(err)
				}
				config := in.CachedInfo().Config
				config.AllowAtomicPublish = true
				if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.start(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			with, err := s.newPlacer(t.Context(), together)
			if err != nil {
				t.Fatal(err)
			}
			if together != (with.publish != nil) {
				t.Error("events are not published as wanted")
			}
			wantOnePlaced(t, with, earlyRequest(3))
			var many errgroup.Group
			for range 50 {
				many.Go(func() error {
					placed, err := with.place(t.Context(), newPeerRequest(3, 3))
					if err == nil && !placed {
						err = errors.New("refused")
					}
					return err
				})
			}
			if err := many.Wait(); err != nil {
				t.Error(err)
			}
			if placed := with.placed.Load(); placed != 53 {
				t.Errorf("%d holds placed, want 53 with the repeated one", placed)
			}
			if err := with.close(t.Context()); err != nil {
				t.Error(err)
			}
			s.answered = 54
			created := map[string]int{holds.EventHoldCreated: 53, holds.EventHoldRejected: 1}
			if err := s.tally(t.Context(), created); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestClosedLoop_Calls_CountedAndBounded checks the number of calls at once, and that an error ends the loop.
func TestClosedLoop_Calls_CountedAndBounded(t *testing.T) {
	t.Parallel()
	const clients = 5
	at := make(chan struct{}, clients)
	seen := make(chan int, 10_000)
	rate, times, err := closedLoop(t.Context(), clients, 100*time.Millisecond, func(_ context.Context, n int) error {
		select {
		case at <- struct{}{}:
		default:
			return errors.New("too many at once")
		}
		seen <- n
		<-at
		time.Sleep(100 * time.Microsecond) // the work
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rate.Number != len(seen) || rate.Number == 0 || times.P50 < 0.1 {
		t.Errorf("%d calls, %+v, %+v", len(seen), rate, times)
	}
	failed := errors.New("failed")
	fail := func(context.Context, int) error { return failed }
	if _, _, err := closedLoop(t.Context(), 2, time.Hour, fail); !errors.Is(err, failed) {
		t.Error(err)
	}
}

// TestLoad_Spreads_PickResources checks which resources requests are for.
func TestLoad_Spreads_PickResources(t *testing.T) {
	t.Parallel()
	const resources, requests = 100, 10_000
	for spread, atMost := range map[string]int{
		spreadAlone: requests / resources, spreadEven: 3 * requests / resources, spreadZipf: requests,
	} {
		counts := make([]int, resources)
		for n := range requests {
			counts[load{resources, spread}.pick(n)]++
		}
		most := slices.Max(counts)
		if most > atMost || slices.Min(counts) == 0 && spread != spreadZipf {
			t.Errorf("%q: between %d and %d requests for a resource", spread, slices.Min(counts), most)
		}
		if spread == spreadZipf && (counts[0] != most || counts[0] < 3*counts[3] || counts[0] > 8*counts[3]) { // 4^1.1 is 4.6
			t.Errorf("by Zipf: %v", counts)
		}
	}
}

// TestEachHold_KindsOfKeys_SumUp checks the bytes of a hold by kind of key.
func TestEachHold_KindsOfKeys_SumUp(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"ns:{7}:r00001:hold:r00001.0123": "hold", "ns:{7}:r00001:request:a:b": "request", "ns:{7}:r00001:due": "due",
		"ns:{7}:agenda": "partition",
	} {
		if got := kindOf(key); got != want {
			t.Errorf("%s is of kind %s, want %s", key, got, want)
		}
	}
	parts := eachHold(map[string]float64{"hold": 3000, "due": 1000}, 5000, 10)
	if parts["hold"] != 300 || parts["due"] != 100 || parts["other"] != 100 || len(parts) != 3 {
		t.Errorf("%v", parts)
	}
	if line := (Scaling{Parts: parts}).KindsLine(); !strings.HasPrefix(line, "hold 300, ") {
		t.Error(line)
	}
}

// TestThrottle_Process_BoundedAndReleased bounds the CPU time of a process, and ends that.
func TestThrottle_Process_BoundedAndReleased(t *testing.T) {
	t.Parallel()
	own, err := cpuGroupIn("7:pids:/init\n6:cpu,cpuacct:/a/b\n5:cpuset:/c\n")
	if err != nil || own != cpuGroups+"/a/b" {
		t.Errorf("%s, %v", own, err)
	}
	if _, err := cpuGroupIn("0::/unified\n5:cpuset:/c\n"); !errors.Is(err, errNoQuota) {
		t.Error(err)
	}
	child := exec.CommandContext(t.Context(), "sleep", "600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	pid := child.Process.Pid
	before, err := cpuGroupOf(pid)
	if err != nil {
		t.Skip("no CPU controller of cgroups v1: ", err)
	}
	lift, err := throttle(throttledShare, pid)
	if errors.Is(err, errNoQuota) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	during, err := cpuGroupOf(pid)
	if err != nil || during == before {
		t.Errorf("the process is still in %s, %v", during, err)
	}
	quota, err := os.ReadFile(filepath.Join(during, "cpu.cfs_quota_us"))
	if err != nil || string(quota) != "10000\n" {
		t.Errorf("quota %q, %v; want a tenth of 100 ms", quota, err)
	}
	if err := lift(); err != nil {
		t.Error(err)
	}
	if after, err := cpuGroupOf(pid); err != nil || after != before {
		t.Errorf("the process is in %s, %v; want %s", after, err, before)
	}
	if _, err := os.Stat(during); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", during, err)
	}
}

// TestRun_OwnServers_MeasuresLoads measures batches, peers, an overload, scale, the console and an idle worker on servers that
// Run starts.
func TestRun_OwnServers_MeasuresLoads(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{
		Worker: workerProgram, Parts: []string{"batches", "peers", "overload", "scale", "console", "idle"}, Size: Tiny,
		NATSCommand: []string{own, asNATS}, Progress: func(line string) { t.Log(line) }, Step: func(int, int, string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Batches) != len(batchSizes) || r.Idle == nil || r.Idle.Rows != allSizes[Tiny].allResources*calendar {
		t.Errorf("batches %+v, idle %+v", r.Batches, r.Idle)
	}
	if c := r.Consoles; c == nil || len(c.With) != 1 || len(c.Without) != 1 || c.TimesWithout <= 0 || c.MicrosTimes <= 0 {
		t.Errorf("console %+v", c)
	}
	if want := (len(allPeers) + 2) * len(peerLoads); len(r.Peers) != want {
		t.Errorf("%d figures of peers, want %d", len(r.Peers), want)
	}
	for _, p := range r.Peers {
		if p.Rate.PerSecond <= 0 || p.InFlight == 0 || (p.Quarter != nil) != (p.Resources == manyResources && p.Event) {
			t.Errorf("%+v", p)
		}
	}
	if len(r.Overloads) != 4 && len(r.Skipped) == 0 {
		t.Errorf("overloads: %+v, skipped %q", r.Overloads, r.Skipped)
	}
	if len(r.ScaleOuts) != 2 && len(r.Skipped) == 0 {
		t.Errorf("scale: %+v, skipped %q", r.ScaleOuts, r.Skipped)
	}
	for _, s := range r.ScaleOuts {
		if s.Attempts < 1 || s.PerSecond <= 0 || s.TimesOne <= 0 || s.ProcessorMicros[processRedis] <= 0 {
			t.Errorf("%+v", s)
		}
	}
	for _, o := range r.Overloads {
		if o.Attempts < 1 || o.PerSecond <= 0 || o.BackSeconds < 0 {
			t.Errorf("%+v", o)
		}
	}
}
