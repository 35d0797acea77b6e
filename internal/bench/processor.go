package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
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
	add(processNATS, b.nats.PID())
	add(processRedis, b.stack.RedisPID())
	for _, w := range workers {
		add(processWorker, w.PID())
	}
	times[processPostgres] = familyTime(b.stack.PostgresPID())
	return times
}

// familyTime returns the CPU time of a process and its children, including children that have ended:
// Postgres has a process for each connection.
func familyTime(parent int) (used time.Duration) {
	for _, pid := range family(parent) {
		if p, err := readStat(pid); err == nil {
			used += p.own
			if pid == parent {
				used += p.ended
			}
		}
	}
	return used
}

// family returns the ids of a process and its children.
func family(parent int) []int {
	pids := []int{parent}
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return pids // impossible: the pattern is valid
	}
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if p, err := readStat(pid); err == nil && p.parent == parent {
			pids = append(pids, pid)
		}
	}
	return pids
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

// machineTime returns the time in which the processors of the machine were not idle, summed over them, since
// it started; the time that a hypervisor gave to other machines counts too. It is 0 where it is unknown, on
// systems other than Linux. The load average is another figure: it counts threads that wait, and can be higher
// than the number of processors.
func machineTime() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	return busyTime(string(text))
}

// busyTime returns the sum of the first line of /proc/stat without idle and iowait. The line also has the
// time of guests, which is a part of user and nice.
func busyTime(text string) (busy time.Duration) {
	line, _, _ := strings.Cut(text, "\n")
	const idle, iowait, guest = 4, 5, 9
	for at, word := range strings.Fields(line) {
		if at == 0 || at == idle || at == iowait || at >= guest {
			continue
		}
		ticks, err := strconv.Atoi(word)
		if err != nil {
			return 0
		}
		busy += time.Duration(ticks) * tick
	}
	return busy
}

// ownTime returns the CPU time of this process and of its descendants that have ended and were waited for.
func ownTime() (own time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err == nil {
			own += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		}
	}
	return own
}

// others measures how many processors other programs keep busy.
type others struct {
	at           time.Time
	machine, own time.Duration
}

func watchOthers() others { return others{time.Now(), machineTime(), ownTime()} }

// busy returns how many processors other programs kept busy since o, on average. It counts a child of this
// process as another program until it has ended.
func (o others) busy() float64 {
	now := watchOthers()
	return othersBusy(now.machine-o.machine, now.own-o.own, now.at.Sub(o.at))
}

// othersBusy returns how many processors were busy, on average, but for the CPU time of this process. The
// times have a resolution of a tick, so the difference can be negative.
func othersBusy(machine, own, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return max(0, (machine-own).Seconds()/took.Seconds())
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
