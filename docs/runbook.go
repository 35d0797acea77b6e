// Package docs has the documents that a program shows.
package docs

import _ "embed" // for Runbook

// Runbook is the text of runbook.md.
//
//go:embed runbook.md
var Runbook string
