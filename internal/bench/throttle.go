package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const cpuGroups = "/sys/fs/cgroup/cpu"

// quotaPeriod is the usual period of the quotas of containers. A process that has used its share waits for the
// next one, with every lock that it has.
const quotaPeriod = 100 * time.Millisecond

// errNoQuota reports that this user or this machine cannot bound the CPU time of a process.
const errNoQuota = skipError("it needs root and CPU quotas of cgroups v1 (" + cpuGroups + ")")

// throttle bounds the processes of a server, together, to a share of one processor. lift ends that. If
// this process is killed before, an empty control group may be left.
func throttle(share float64, pids ...int) (lift func() error, err error) {
	group := filepath.Join(cpuGroups, fmt.Sprintf("holdfast-bench-%08x", rand.Uint32()))
	if _, err := os.Stat(filepath.Join(cpuGroups, "cpu.cfs_quota_us")); err != nil {
		return nil, errNoQuota
	}
	if err := os.Mkdir(group, 0o755); err != nil { //nolint:gosec // its mode is the kernel's matter
		return nil, errors.Join(errNoQuota, err)
	}
	set := func(group, name string, value int64) error {
		text := strconv.FormatInt(value, 10)
		return os.WriteFile(filepath.Join(group, name), []byte(text), 0o644) //nolint:gosec // likewise
	}
	home, err := cpuGroupOf(pids[0]) // where the processes were before
	if err != nil {
		return nil, errors.Join(fmt.Errorf("throttle: %w", err), os.Remove(group))
	}
	move := func(pid int, to string) error {
		err := set(to, "cgroup.procs", int64(pid))
		if _, gone := readStat(pid); gone == nil {
			return err
		}
		return nil // the process has ended, and is in no group
	}
	lift = func() error {
		errs := []error{set(group, "cpu.cfs_quota_us", -1)}
		text, err := os.ReadFile(filepath.Join(group, "cgroup.procs")) // children that have started meanwhile, too
		errs = append(errs, err)
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			errs = append(errs, err, move(pid, home))
		}
		return errors.Join(append(errs, os.Remove(group))...)
	}
	err = errors.Join(set(group, "cpu.cfs_period_us", quotaPeriod.Microseconds()),
		set(group, "cpu.cfs_quota_us", int64(share*float64(quotaPeriod.Microseconds()))))
	for _, pid := range pids {
		err = errors.Join(err, move(pid, group))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("throttle: %w", err), lift())
	}
	return lift, nil
}

// cpuGroupOf returns the directory of the control group that bounds the CPU time of a process.
func cpuGroupOf(pid int) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return "", err
	}
	return cpuGroupIn(string(text))
}

// cpuGroupIn returns the directory that /proc/PID/cgroup names for the controller cpu.
func cpuGroupIn(text string) (string, error) {
	for line := range strings.Lines(text) { // hierarchy:controllers:path
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(words) < 3 {
			continue
		}
		for controller := range strings.SplitSeq(words[1], ",") {
			if controller == "cpu" {
				return filepath.Join(cpuGroups, words[2]), nil
			}
		}
	}
	return "", errNoQuota
}
