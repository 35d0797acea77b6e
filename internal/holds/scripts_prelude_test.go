package holds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"holdfast/internal/lua"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// luaProbe is the prelude's side of what package record writes too.
//
// ARGV  4 user  5 slots  6 line of a record
// Returns ok index_field tail line
const luaProbe = `
local function run(KEYS, ARGV)
  begin(KEYS, ARGV)
  local hold = parse(ARGV[6])
  if not hold then return {'corrupt', ARGV[6]} end
  return {'ok', index_field(ARGV[4], ARGV[5]), hold.tail, format(hold)}
end`

// recordInput is what a record is written of.
type recordInput struct {
	user, requestKey, slots, selection string
	metadata                           jsontext.Value
	quantity                           int64
}

var (
	// nameGen is a user or a request key: every printable character of ASCII, those more often that have a meaning in some syntax.
	nameGen = rapid.OneOf(
		rapid.StringMatching(`[!-~]{1,128}`),
		rapid.StringMatching(`["\\/@{}:,|%'\-.*^$]{1,8}`),
		rapid.SampledFrom([]string{`"`, `\`, `/`, `\/`, `\\/`, `</script>`, `%s%d`, `@`, `@@a`, `late:x`, `-`, `{}`, `\u0041`, `a\"b`, `nil`, `~`, `%1`}),
	)
	selectionGen = rapid.OneOf(
		rapid.Just(SlotSelection{}),
		rapid.Custom(func(t *rapid.T) SlotSelection {
			return SlotSelection{Slots: rapid.SliceOfNDistinct(rapid.StringMatching(SlotPattern.String()), 1, SlotsMax, rapid.ID).Draw(t, "slots")}
		}),
		rapid.Custom(func(t *rapid.T) SlotSelection {
			in := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, rapid.IntRange(0, 1000).Draw(t, "from"))
			return SlotSelection{CheckIn: in.Format(DateFormat), CheckOut: in.AddDate(0, 0, rapid.IntRange(1, 90).Draw(t, "nights")).Format(DateFormat)}
		}),
	)
	metadataGen = rapid.SampledFrom([]jsontext.Value{nil, []byte(`{}`), []byte(`{"a":"b  c","d":" "}`), []byte(`{"ä":"😀\u0000\\/\""}`), []byte(`{"held":"0 0 0 0 - x"}`)})
)

func drawRecordInput(t *rapid.T) recordInput {
	a := selectionGen.Draw(t, "selection")
	names, err := a.names(nightsWindow{max: 90})
	stacktest.Must(t, err)
	text, err := a.Compact()
	stacktest.Must(t, err)
	return recordInput{
		nameGen.Draw(t, "user"), nameGen.Draw(t, "key"), joinSlots(names), text, metadataGen.Draw(t, "metadata"),
		rapid.Int64Range(1, QuantityMax).Draw(t, "quantity"),
	}
}

// TestRecord_LuaAndGo_WriteTheSame has the prelude and package record write the same: the field of an index and a
// record. Either writes what the other must find.
func TestRecord_LuaAndGo_WriteTheSame(t *testing.T) {
	t.Parallel()
	client := stacktest.ConnectRedis(t, stacktest.Shared().RedisURL)
	script := lua.NewPacked("prelude probe", "no-writes", packMax, prelude+luaProbe)
	ns := record.Keyspace(stacktest.Namespace(t))
	id := HoldID{"room", "0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"}
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(drawRecordInput), 1, 20).Draw(t, "holds")
		calls := make([]*lua.Call, len(all))
		want := make([][]string, len(all))
		for i, r := range all {
			tail := record.Tail{User: r.user, RequestKey: r.requestKey, Slots: r.slots, Selection: r.selection, Metadata: string(r.metadata)}.String()
			line := fmt.Sprintf("held %d %d %d 0 - %s", 1790000000000+int64(i), 1780000000000, r.quantity, tail)
			want[i] = []string{record.IndexField(r.user, r.slots), tail, line}
			calls[i] = &lua.Call{Script: script, Keys: []string{ns.Epoch(0)}, Args: []any{"", "room", ns.Prefix("room"), r.user, r.slots, line}}

			hold, err := parseRecord(id, line)
			if err != nil || hold.UserID != r.user || hold.RequestKey != r.requestKey || joinSlots(hold.Names) != r.slots || *hold.Quantity != r.quantity || string(hold.Metadata) != string(r.metadata) {
				t.Fatalf("%q is read as %+v: %v", line, hold, err)
			}
			if text, err := hold.Compact(); err != nil || text != r.selection {
				t.Fatalf("%q is read with asked %q: %v", line, text, err)
			}
		}
		lua.Run(t.Context(), client, calls)
		for i, c := range calls {
			if err := c.Expect(len(want[i])); err != nil {
				t.Fatalf("%+v: %v %q", all[i], err, c.Reply)
			}
			for j, what := range strings.Fields("index_field tail record") {
				if c.Reply[j] != want[i][j] {
					t.Errorf("%s of %+v is\n\t%q in the prelude, and\n\t%q in package record", what, all[i], c.Reply[j], want[i][j])
				}
			}
			if !slices.Equal(c.Reply, want[i]) {
				t.FailNow()
			}
		}
	})
}
