package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// The names of processes. Several workers are told as one, and so is Postgres with its backends.
const (
	processWorker   = "worker"
	processRedis    = "redis"
	processNATS     = "nats"
	processPostgres = "postgres"
	processBench    = "bench" // this one: what asks
)

// Processes are the names, in the order in which they are told.
var Processes = []string{processWorker, processRedis, processNATS, processPostgres, processBench}

// processorTimes is what processes have used of the processor, by name. Nil where that cannot be
// known: elsewhere than on Linux, and of servers that were given.
type processorTimes map[string]time.Duration

// tick is the unit of /proc/PID/stat: USER_HZ, which is 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// processorTimes reads what has been used until now.
func (b *runner) processorTimes(workers []*worker) processorTimes {
	if b.stack == nil || runtime.GOOS != "linux" {
		return nil
	}
	times := make(processorTimes)
	// One that cannot be read has ended, which others notice.
	add := func(name string, pid int) {
		if p, err := readStat(pid); err == nil {
			times[name] += p.own
		}
	}
	add(processBench, os.Getpid())
	add(processNATS, b.nats.cmd.Process.Pid)
	add(processRedis, b.stack.RedisPID())
	for _, w := range workers {
		add(processWorker, w.cmd.Process.Pid)
	}
	times[processPostgres] = familyTime(b.stack.PostgresPID())
	return times
}

// familyTime is what a process and its children have used, those that have ended included: Postgres
// has a process for each connection.
func familyTime(parent int) (used time.Duration) {
	if p, err := readStat(parent); err == nil {
		used = p.own + p.ended
	}
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return used // never: the pattern is right
	}
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if p, err := readStat(pid); err == nil && p.parent == parent {
			used += p.own
		}
	}
	return used
}

// stat is what is read of a process: its parent, and what it and its children that have ended used.
type stat struct {
	parent     int
	own, ended time.Duration
}

func readStat(pid int) (stat, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	text, err := os.ReadFile(path)
	if err != nil {
		return stat{}, err
	}
	words := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the state, the third word, on
	if len(words) < 15 {
		return stat{}, fmt.Errorf("%s: %d words", path, len(words))
	}
	var numbers [5]int // the parent; user and system time of its own, and of its children
	for i, at := range []int{1, 11, 12, 13, 14} {
		if numbers[i], err = strconv.Atoi(words[at]); err != nil {
			return stat{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return stat{numbers[0], time.Duration(numbers[1]+numbers[2]) * tick, time.Duration(numbers[3]+numbers[4]) * tick}, nil
}

// since is what was used since an earlier reading.
func (t processorTimes) since(before processorTimes) processorTimes {
	if t == nil {
		return nil
	}
	used := make(processorTimes, len(t))
	for name, now := range t {
		used[name] = now - before[name]
	}
	return used
}

// each is the use of each of a number of events, in microseconds; nil when nothing is known.
func (t processorTimes) each(number int) map[string]float64 {
	if t == nil {
		return nil
	}
	micros := make(map[string]float64, len(t))
	for name, used := range t {
		micros[name] = float64(used.Microseconds()) / float64(number)
	}
	return micros
}
