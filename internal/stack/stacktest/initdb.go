package stacktest

import (
	"errors"
	"os"
	"path/filepath"

	"holdfast/internal/stack"
)

// initdbScript is [stack.InitdbBy]. initdb takes most of the processor time that a Postgres of one test needs, so it runs once
// in a process; the others get a copy of its data. Each has a system identifier of its own, by which workers know one Postgres
// from another: it is at the begin of pg_control, whose checksum pg_resetwal then repairs.
const initdbScript = `#!/bin/sh
# copy-initdb <path of initdb> -D <data> <more arguments of initdb, always the same>
set -eu
initdb=$(readlink -f "$1") data=$3 made=$(dirname "$0")/made
shift
if [ -e "$made/complete" ]; then
	cp -R "$made/data/." "$data"
	head -c 6 /dev/urandom | dd of="$data/global/pg_control" conv=notrunc
	exec "$(dirname "$initdb")/pg_resetwal" -f "$data"
fi
"$initdb" "$@"
if mkdir "$made" 2>/dev/null; then # else another one does this
	cp -R "$data" "$made/data"
	touch "$made/complete"
fi
`

// copyInitdb makes the servers of this process use initdbScript, with its data in a new directory in dir.
func copyInitdb(dir string) error {
	dir = filepath.Join(dir, "initdb")
	stack.InitdbBy = filepath.Join(dir, "copy-initdb")
	return errors.Join(
		os.Mkdir(dir, 0o700),
		os.WriteFile(stack.InitdbBy, []byte(initdbScript), 0o600),
		os.Chmod(stack.InitdbBy, 0o755),
		os.Chmod(dir, 0o777|os.ModeSticky), // Postgres may run as another user
	)
}
