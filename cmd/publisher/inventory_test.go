package main

import (
	"regexp"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestInventoryShow_OtherNamespace_ShowsThatNamespace queries two namespaces on the same servers, and one without
// a worker.
func TestInventoryShow_OtherNamespace_ShowsThatNamespace(t *testing.T) {
	t.Parallel()
	if restricted != nil {
		t.Skip("the users of these servers are of one namespace")
	}
	room, other := fresh("room"), strings.ReplaceAll(fresh("other"), "-", "_")
	publisher(t, words("inventory set --resource-id "+room+" --capacity 3 --wait")...).want(t, exitOK)
	show := "inventory show --resource-id " + room
	publisher(t, words(show)...).want(t, exitOK, "AVAILABLE", "3")
	if r := publisher(t, words(show+" --namespace "+other)...).want(t, exitFailed, "no worker answers",
		other); r.out != "" {
		t.Errorf("shows the inventory of another namespace:\n%s", r.out)
	}
	startWorker(t, append(serverFlags(t), "--namespace", other)...)
	publisher(t, words("inventory set --resource-id "+room+" --capacity 7 --wait --namespace "+other)...).want(t, exitOK)
	publisher(t, words(show+" -o json --namespace "+other)...).want(t, exitOK, `"capacity":7`)
	publisher(t, words(show+" -o json")...).want(t, exitOK, `"capacity":3`)
}

// TestInventoryShow_SlotWithoutRow_IsNotSoldOut compares slots that are sold out with slots without a row.
func TestInventoryShow_SlotWithoutRow_IsNotSoldOut(t *testing.T) {
	t.Parallel()
	room := fresh("room")
	publisher(t, words("inventory set --resource-id "+room+" --slot A-1 --capacity 0 --wait")...).want(t, exitOK)
	show := words("inventory show --resource-id " + room + " --slot A-1 --slot A-2")
	r := publisher(t, show...).want(t, exitOK)
	want := []string{
		"SLOT CAPACITY RESERVED HELD AVAILABLE",
		strings.Repeat("─", len([]rune(strings.Split(r.out, "\n")[1]))),
		"A-1 0 0 0 0",
		"A-2 - - 0 - no inventory row",
	}
	var got []string
	for line := range strings.Lines(r.out) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("printed\n%s", r.out)
	}
	publisher(t, append(show, "-o", "json")...).want(t, exitOK,
		`"slot":"A-1","capacity":0,"reserved":0,"held":0,"available":0,"known":true`,
		`"slot":"A-2","capacity":0,"reserved":0,"held":0,"available":0,"known":false`)
	if r := publisher(t, show[:len(show)-2]...).want(t, exitOK); strings.Contains(r.out, "inventory row") {
		t.Errorf("printed\n%s", r.out)
	}
}

// TestInventoryShow_LostCommits_CapacityNotShown has a lost commit of a resource that cannot be put back.
func TestInventoryShow_LostCommits_CapacityNotShown(t *testing.T) {
	t.Parallel()
	room, postgres := fresh("room"), serverFlags(t)[5]
	publisher(t, words("inventory set --resource-id "+room+" --slot A-1 --capacity 5 --wait")...).want(t, exitOK)
	stacktest.PostgresSQL(t, postgres, `INSERT INTO holdfast.lost_commits (outcome_id, resource_id, event, reason, outcome)
		VALUES ('`+room+`', '`+room+`', 'hold.moved', 'a test', '[]')`)
	defer stacktest.PostgresSQL(t, postgres, `DELETE FROM holdfast.lost_commits WHERE outcome_id = '`+room+`'`)
	show := words("inventory show --resource-id " + room + " --slot A-1")
	r := publisher(t, show...).want(t, exitOK)
	const want = "\nA-1 - 0 0 0 lost commits, nothing is granted: see worker audit\n"
	if text := regexp.MustCompile(" +").ReplaceAllString(r.out, " "); !strings.Contains(text, want) {
		t.Errorf("printed\n%s", r.out)
	}
	publisher(t, append(show, "-o", "json")...).want(t, exitOK, `"available":0,"known":true,"lost_commits":true`)
}
