// Command gotest runs go test and repeats failed tests. A test that fails and then passes twice alone
// is flaky: gotest reports it with its first output, and the run does not fail.
//
//	gotest [-name=value ...] package ...
//
// It passes every flag to go test. It exits with 0 when no test failed or only flaky ones did, else with
// 1. With FLAKY_FILE set, it appends a line for each flaky test to that file.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const (
	repeatsWanted = 2  // passes alone after which a failed test counts as flaky
	failuresMax   = 10 // with more failed tests gotest repeats none of them
)

func main() {
	var flags, packages []string
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-") {
			flags = append(flags, arg)
		} else {
			packages = append(packages, arg)
		}
	}
	if len(packages) == 0 {
		fmt.Fprintln(os.Stderr, "usage: gotest [-name=value ...] package ...")
		os.Exit(2)
	}
	if err := check(os.Stdout, flags, packages); err != nil {
		fmt.Println("gotest:", err)
		os.Exit(1)
	}
}

// check runs the packages and repeats failed tests. It returns an error unless each test passes or is
// flaky.
func check(w io.Writer, flags, packages []string) error {
	first, err := goTest(w, slices.Contains(flags, "-v"), append(flags, packages...)...)
	if err == nil {
		return nil
	}
	failed := first.failed()
	for _, f := range failed {
		fmt.Fprintf(w, "\n--- output of %s\n%s", f, first.output(f))
	}
	if len(failed) == 0 || len(failed) > failuresMax {
		return fmt.Errorf("%w; %d tests failed", err, len(failed))
	}
	broken := 0
	for _, f := range failed {
		if !first.unbuilt[f.pkg] && passesAlone(f, flags) {
			fmt.Fprintf(w, "\nFLAKY %s: failed, then passed %d times alone; its first output is above\n", f, repeatsWanted)
			if err := record(f); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(w, "\nFAIL %s\n", f)
		broken++
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d failed tests failed again alone", broken, len(failed))
	}
	return nil
}

// record appends a flaky test to FLAKY_FILE, if that is set.
func record(f failure) error {
	path := os.Getenv("FLAKY_FILE")
	if path == "" {
		return nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, f)
	return cmp.Or(err, file.Close())
}

// passesAlone runs a failed test alone, and reports whether it passes repeatsWanted times in a row.
func passesAlone(f failure, flags []string) bool {
	flags = slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		return f.test != "" && strings.HasPrefix(flag, "-run=") || strings.HasPrefix(flag, "-count=")
	})
	if f.test != "" {
		flags = append(flags, "-run=^"+f.test+"$")
	}
	for range repeatsWanted {
		again, err := goTest(io.Discard, false, append(flags, "-count=1", f.pkg)...)
		if err != nil {
			fmt.Printf("\n--- output of %s, alone\n%s", f, again.output(f))
			return false
		}
	}
	return true
}

// failure names a failed test, or a package that failed without a failed test or did not run all its tests.
type failure struct{ pkg, test string }

func (f failure) String() string { return strings.TrimSpace(f.pkg + " " + f.test) }

func (f failure) compare(other failure) int { return strings.Compare(f.String(), other.String()) }

// results are the results of one go test.
type results struct {
	outputs map[failure]*strings.Builder // by test, including its subtests; of the package itself with test ""
	failing map[failure]bool
	unbuilt map[string]bool // packages that do not build
	ended   map[string]bool // packages that ran all tests; a panic ends the others
}

// output returns what a test printed, or a package and its failed tests.
func (r *results) output(f failure) string {
	var all strings.Builder
	for _, of := range slices.SortedFunc(maps.Keys(r.outputs), failure.compare) {
		if of == f || f.test == "" && of.pkg == f.pkg && r.failing[of] {
			all.WriteString(r.outputs[of].String())
		}
	}
	return all.String()
}

// failed returns the failed tests of the packages that ran all, and the other failed packages.
func (r *results) failed() []failure {
	byTest := make(map[string]bool)
	for f := range r.failing {
		byTest[f.pkg] = byTest[f.pkg] || f.test != "" && r.ended[f.pkg]
	}
	failed := slices.Collect(maps.Keys(r.failing))
	failed = slices.DeleteFunc(failed, func(f failure) bool { return (f.test == "") == byTest[f.pkg] })
	slices.SortFunc(failed, failure.compare)
	return failed
}

// goTest runs go test and copies its lines about packages to w, or all its lines if verbose.
func goTest(w io.Writer, verbose bool, args ...string) (*results, error) {
	r := &results{
		outputs: make(map[failure]*strings.Builder),
		failing: make(map[failure]bool), unbuilt: make(map[string]bool), ended: make(map[string]bool),
	}
	command := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := command.Start(); err != nil {
		return r, err
	}
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // end of the output; Wait returns the exit status
		}
		var event struct{ Action, Package, ImportPath, Test, Output, FailedBuild string }
		if json.Unmarshal(line, &event) != nil {
			fmt.Fprintf(w, "%s", line)
			continue
		}
		test, _, _ := strings.Cut(event.Test, "/")
		f := failure{cmp.Or(event.Package, event.ImportPath), test}
		switch event.Action {
		case "output", "build-output":
			if r.outputs[f] == nil {
				r.outputs[f] = new(strings.Builder)
			}
			r.outputs[f].WriteString(event.Output)
			r.ended[f.pkg] = r.ended[f.pkg] || event.Test == "" && event.Output == "FAIL\n"
			if verbose || event.Test == "" && event.Output != "PASS\n" && event.Output != "FAIL\n" {
				fmt.Fprint(w, event.Output)
			}
		case "fail":
			r.failing[f] = true
			r.unbuilt[f.pkg] = r.unbuilt[f.pkg] || event.FailedBuild != ""
		}
	}
	return r, command.Wait()
}
