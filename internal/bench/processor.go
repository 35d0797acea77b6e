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

// The names of processes. All workers together have one name, and so has Postgres with its backends.
const (
	processWorker   = "worker"
	processRedis    = "redis"
	processNATS     = "nats"
	processPostgres = "postgres"
	processBench    = "bench" // this process: the load generator
)

// Processes are the names of processes in the order of the report.
var Processes = []string{processWorker, processRedis, processNATS, processPostgres, processBench}

// processorTimes is CPU time by process name. It is nil if it is unknown: on systems other than Linux,
// and with the servers of Options.
type processorTimes map[string]time.Duration

// tick is the unit of /proc/PID/stat: USER_HZ, which is 100 on every Linux that Go supports.
const tick = 10 * time.Millisecond

// processorTimes returns the CPU time used so far by these workers, the servers and this process.
func (b *runner) processorTimes(workers []*worker) processorTimes {
	if b.stack == nil || runtime.GOOS != "linux" {
		return nil
	}
	times := make(processorTimes)
	// A process that cannot be read has ended; alive reports that.
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

// familyTime returns the CPU time of a process and its children, including children that have ended:
// Postgres has a process for each connection.
func familyTime(parent int) (used time.Duration) {
	if p, err := readStat(parent); err == nil {
		used = p.own + p.ended
	}
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return used // impossible: the pattern is valid
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

// stat is a part of /proc/PID/stat.
type stat struct {
	parent int
	own    time.Duration // CPU time of the process
	ended  time.Duration // CPU time of its children that have ended
}

func readStat(pid int) (stat, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	text, err := os.ReadFile(path)
	if err != nil {
		return stat{}, err
	}
	words := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // words[0] is the third field: the state
	if len(words) < 15 {
		return stat{}, fmt.Errorf("%s: %d words", path, len(words))
	}
	var numbers [5]int // the parent; user and system time of the process, and of its ended children
	for i, at := range []int{1, 11, 12, 13, 14} {
		if numbers[i], err = strconv.Atoi(words[at]); err != nil {
			return stat{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return stat{numbers[0], time.Duration(numbers[1]+numbers[2]) * tick, time.Duration(numbers[3]+numbers[4]) * tick}, nil
}

// since returns the CPU time used since an earlier reading.
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

// each returns the CPU time per event, in microseconds, for a number of events.
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
