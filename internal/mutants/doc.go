// Package mutants breaks our own code on purpose, one thing at a time, and sees that the tests find
// each. Only tests use it; docs/faults.md has the table.
//
// A mutant is a change of source text: of Go, of a script, of a query. It is handed to the compiler as
// an overlay (go build -overlay), so nothing is written into the tree, and no program has a switch by which
// it could be broken. The overlay goes by way of GOFLAGS, so that tests that build programs of their own
// build broken ones.
//
//	go test ./internal/mutants                                            # each mutant still fits the code
//	go test ./internal/mutants -mutants -v -timeout 2h                    # and is found by its test
//	go test ./internal/mutants -mutants -v -run 'Caught/^rev-not-compared$'
package mutants
