package holds

import (
	"holdfast/internal/locking"
	"holdfast/internal/lua"
)

// Dry returns a Service that decides as s would decide now, but changes nothing. It runs the same
// scripts without their writes, and inventory must write nothing. Each call is decided as if it were the
// only one; the requests of one call see each other's grants. Outcome.At shows whether it was already decided before.
func (s *Service) Dry(inventory Inventory) *Service {
	dry := *s
	dry.dry, dry.inventory = true, inventory
	dry.locker = locking.New(locking.NewNone(s.redis), locking.Options{})
	return &dry
}

// withoutWrites precedes the dry variant of a script and replaces each writing command by one that
// returns 0. This is correct because the scripts use the reply of a write only to decide whether to
// write more. If a writing command is missing from the list, Redis refuses it, because dry scripts
// have the flag no-writes.
const withoutWrites = `
local real, WRITES = redis, {}
local names = 'DEL HDEL HINCRBY HSET INCR PERSIST PEXPIRE SET SPUBLISH ZADD ZREM'
for name in string.gmatch(names, '%u+') do WRITES[name] = true end
local function unless_write(call)
  return function(name, ...)
    if WRITES[name] then return 0 end
    return call(name, ...)
  end
end
local redis = {call = unless_write(real.call), pcall = unless_write(real.pcall), sha1hex = real.sha1hex}
`

var dryScripts = loadDryScripts()

func loadDryScripts() map[string]lua.Script {
	scripts := make(map[string]lua.Script)
	for _, script := range []lua.Script{scriptPlace, scriptClaim, scriptSettle, scriptRelease, scriptExtend} {
		text := "local READS = true\n" + withoutWrites + prelude + source(script.Name)
		scripts[script.Name] = lua.NewPacked("dry "+script.Name, noWrites, packMax, text)
	}
	return scripts
}

// dryVariant returns the dry variant of a script when s is dry and the script writes, else the
// script.
func (s *Service) dryVariant(script lua.Script) lua.Script {
	if variant, writes := dryScripts[script.Name]; s.dry && writes {
		return variant
	}
	return script
}
