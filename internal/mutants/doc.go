// Package mutants breaks our own code on purpose, one change at a time, and checks that a test finds each
// change. It has tests only; docs/faults.md has the table.
//
// A mutant is a file testdata/<area>/<name>.txtar: a header, the lines before and the lines after. It changes
// source text: Go, a script, a query. The compiler gets it as an overlay (go build -overlay), so nothing is
// written into the tree, and no program has a switch that breaks it. The overlay is passed in GOFLAGS, so that
// tests that build programs build the broken ones.
//
//	go test ./internal/mutants                                            # each mutant still fits the code
//	go test ./internal/mutants -mutants -v -timeout 3h                    # a test finds each mutant
//	go test ./internal/mutants -mutants -v -run 'Caught/^rev-not-compared$'
//	go test ./internal/mutants -mutants -v -mutants.tenth 3               # every tenth mutant, from the third on
package mutants
