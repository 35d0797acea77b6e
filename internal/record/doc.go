// Package record defines how holds are stored in Redis: the names of the keys, and the lines that
// the scripts write under them. Packages holds, recovery and audit share it, so that each of the
// three reads and writes the same text. It decides nothing: which record a hold must have follows
// from the scripts of package holds.
//
// The doc comment of package holds lists all keys and who writes them.
package record
