package holds

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/contract"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// KeyParts are what keys are built of.
type KeyParts struct {
	Namespace, Resource, User, RequestKey, Slot, UUID string
}

// valid reports whether the parts are such as come so far.
func (p KeyParts) valid() bool {
	return record.NamespacePattern.MatchString(p.Namespace) && ResourcePattern.MatchString(p.Resource) && ValidName(p.User) &&
		ValidName(p.RequestKey) && SlotPattern.MatchString(p.Slot) && validUUID(p.UUID)
}

// keysOfParts is how many keys KeysOf returns.
const keysOfParts = 19

// KeysOf returns every key that is built of the parts, with what it stands for: two keys that
// stand for different things must be different. What scripts build is built here once more;
// TestKeys_AllVerbs_WriteOnlyKnownKeys compares it with what they write.
func KeysOf(p KeyParts) map[string]string {
	ns := record.Keyspace(p.Namespace)
	prefix := ns.Prefix(p.Resource)
	locks := lockKeys(ns, p.Resource, []string{p.Slot})
	keys := make(map[string]string)
	add := func(key string, means ...string) {
		keys[key] = strings.Join(append([]string{p.Namespace}, means...), "\x00")
	}
	partition := fmt.Sprint(record.Partition(p.Resource))
	add(ns.Epoch(record.Partition(p.Resource)), "epoch", partition)
	add(ns.Agenda(record.Partition(p.Resource)), "agenda", partition)
	add(ns.Partition(record.Partition(p.Resource))+"primary", "primary", partition)
	add(locks.Fence, "fence", partition)
	for _, name := range []string{"counts", "records", "due", "departing", "tombstones", "rev", "users", "locks", "waited_for", "waiting", "released"} {
		add(prefix+name, name, p.Resource)
	}
	add(locks.Scope+"queue:"+locks.Names[0], "queue", p.Resource, p.Slot)
	add(prefix+"hold:"+p.UUID, "hold", p.Resource, p.UUID)
	add(prefix+"started:"+p.UUID, "started", p.Resource, p.UUID)
	add(prefix+"request:"+p.RequestKey, "request", p.Resource, p.RequestKey)
	return keys
}

// FieldsOf returns every field of the hashes counts, users and locks that is built of the parts, behind the hash's
// name and a space, with what it stands for.
func FieldsOf(p KeyParts) map[string]string {
	sum := sha1.Sum([]byte(p.Slot))
	fields := make(map[string]string)
	add := func(hash, field string, means ...string) {
		fields[record.Keyspace(p.Namespace).Prefix(p.Resource)+hash+" "+field] = strings.Join(append([]string{p.Namespace, p.Resource}, means...), "\x00")
	}
	add("counts", p.Slot, "held", p.Slot)
	add("users", p.User, "holds of", p.User)
	add("users", p.User+" "+hex.EncodeToString(sum[:]), "index", p.User, p.Slot)
	add("locks", lockKeys(record.Keyspace(p.Namespace), p.Resource, []string{p.Slot}).Names[0], "lock", p.Slot)
	return fields
}

// fieldsOfParts is how many fields FieldsOf returns.
const fieldsOfParts = 4

// FuzzKeys searches for two sets of parts that share a key, or a field, although they mean something else, for a
// key that leaves its namespace or the hash tag of its partition, and for one that is taken for the
// key of a hold although it is none.
func FuzzKeys(f *testing.F) {
	const uuid = "0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"
	f.Add("holdfast", "room", "u", "k", "A-1", uuid, "holdfast", "room", "u:index:v", "k:hold:k", "counts", uuid)
	f.Add("h", "a", "u", "k", "u", uuid, "h", "a", "@u", "k", "0000000000000000000000000000000000000000", uuid)
	f.Add("h", "epoch", "}:hold:", "{:hold:", "stock", uuid, "h_1", "agenda", "{1}", "}:{", "lock", uuid)
	f.Add("a", "x", "u:0000000000000000000000000000000000000000", "k", "s", uuid, "a", "x", "u", "0000000000000000000000000000000000000000", "s", uuid)
	b := KeyParts{"holdfast", "room", "u", "k", "A-1", uuid}
	for _, a := range catalogueParts(f) {
		f.Add(a.Namespace, a.Resource, a.User, a.RequestKey, a.Slot, a.UUID, b.Namespace, b.Resource, b.User, b.RequestKey, b.Slot, b.UUID)
		b = a
	}
	f.Fuzz(func(t *testing.T, ns1, resource1, user1, key1, slot1, uuid1, ns2, resource2, user2, key2, slot2, uuid2 string) {
		a, b := KeyParts{ns1, resource1, user1, key1, slot1, uuid1}, KeyParts{ns2, resource2, user2, key2, slot2, uuid2}
		if !a.valid() || !b.valid() {
			return // such parts are refused before
		}
		keys := KeysOf(a)
		for key, meaning := range KeysOf(b) {
			if other, shared := keys[key]; shared && other != meaning {
				t.Errorf("%q is the key of %q and of %q", key, other, meaning)
			}
		}
		fields := FieldsOf(a)
		for field, meaning := range FieldsOf(b) {
			if other, shared := fields[field]; shared && other != meaning {
				t.Errorf("%q is the field of %q and of %q", field, other, meaning)
			}
		}
		if len(keys) != keysOfParts || len(fields) != fieldsOfParts {
			t.Errorf("%d keys and %d fields of %+v, some stand for two things", len(keys), len(fields), a)
		}
		for key, meaning := range keys {
			if !strings.HasPrefix(key, fmt.Sprintf("%s:{%d}:", a.Namespace, record.Partition(a.Resource))) {
				t.Errorf("%q leaves its partition", key)
			}
			isHold := strings.HasPrefix(meaning, a.Namespace+"\x00hold\x00")
			if p, taken := record.Keyspace(a.Namespace).PartitionOfHold(key); taken != isHold || taken && p != record.Partition(a.Resource) {
				t.Errorf("%q is taken for the key of a hold: %v, of partition %d", key, taken, p)
			}
			if p, taken := record.Keyspace(b.Namespace).PartitionOfHold(key); taken && a.Namespace != b.Namespace {
				t.Errorf("%q is taken for the key of a hold of namespace %s, of partition %d", key, b.Namespace, p)
			}
		}
	})
}

// catalogueParts are the ids that stand in the catalogue's inputs, whatever becomes of them.
func catalogueParts(t testing.TB) (all []KeyParts) {
	t.Helper()
	inputs, err := contract.ReadInputs("../events/testdata/catalogue", time.Now())
	stacktest.Must(t, err)
	for _, in := range inputs {
		var event struct {
			Data struct {
				Resource   string   `json:"resource_id"`
				User       string   `json:"user_id"`
				RequestKey string   `json:"request_key"`
				Slots      []string `json:"slots"`
				HoldID     string   `json:"hold_id"`
			} `json:"data"`
		}
		// What cannot be read as far as its ids is no seed.
		if json.Unmarshal(in.Body, &event, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil {
			continue
		}
		resource, uuid, _ := strings.Cut(event.Data.HoldID, ".")
		all = append(all, KeyParts{
			"holdfast", cmp.Or(event.Data.Resource, resource, "room"), cmp.Or(event.Data.User, "u"), cmp.Or(event.Data.RequestKey, "k"),
			cmp.Or(strings.Join(event.Data.Slots, ","), "A-1"), cmp.Or(uuid, "0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"),
		})
	}
	if len(all) < 100 {
		t.Fatalf("only %d inputs of the catalogue have ids", len(all))
	}
	return all
}
