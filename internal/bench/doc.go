// Package bench measures Holdfast: how many holds per second it decides, compared with a minimal
// script on the same Redis in the same run. `bench --help` describes all parts.
//
// # How to read the figures
//
// Times depend on the machine and on its other load. The goals are therefore ratios of two
// measurements, one right after the other; each is repeated in several rounds, and the report has
// the median. The report also has the CPU time of each process per event: it shows where the time
// goes, and depends less on other load. The load generator runs on the same machine, in the ceilings
// too.
//
// # When a measurement fails
//
// Each measurement checks that there are as many outcomes as events, all of the expected kind, and
// that no worker has ended. Otherwise it returns an error instead of a figure.
package bench
