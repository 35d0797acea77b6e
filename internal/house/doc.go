// Package house checks the whole tree: the words it uses, the length of its functions, the tests beside its
// files. It has tests only.
//
//	go test ./internal/house          # no word occurs that docs/glossary.md replaces
//	make stats                        # lines by package, long functions, files without a test
package house
