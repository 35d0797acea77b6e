package holds

import (
	"holdfast/internal/locking"
	"holdfast/internal/lua"
)

// Dry returns a Service that decides as s would at this moment and changes nothing: its scripts are
// the same, without their writes, and inventory must be one that writes nothing. Each request is
// decided as if it were the only one; Outcome.At tells whether it was decided before.
func (s *Service) Dry(inventory Inventory) *Service {
	dry := *s
	dry.dry, dry.inventory = true, inventory
	dry.locker = locking.New(locking.NewNone(s.redis), locking.Options{})
	return &dry
}

// withoutWrites begins the dry twin of a script. What a script reads of a write's answer is only
// whether something else is to be written then. The flag no-writes has Redis refuse what is
// forgotten here.
const withoutWrites = `
local real, WRITES = redis, {}
for name in string.gmatch('DEL HDEL HINCRBY HSET INCR PERSIST PEXPIRE SET SPUBLISH ZADD ZREM', '%u+') do WRITES[name] = true end
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
		scripts[script.Name] = lua.NewPacked("dry "+script.Name, "no-writes", packMax, withoutWrites+prelude+source(script.Name))
	}
	return scripts
}

// dryVariant returns the script that s runs for one: itself, or its dry twin.
func (s *Service) dryVariant(script lua.Script) lua.Script {
	if variant, writes := dryScripts[script.Name]; s.dry && writes {
		return variant
	}
	return script
}
