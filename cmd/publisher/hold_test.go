package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/queries"
)

// requestHold grants a hold on the stock of a resource and returns the hold id.
func requestHold(t *testing.T, resource, user string) string {
	t.Helper()
	r := publisher(t, words("request --resource-id "+resource+" --user-id "+user+" --request-key "+fresh("k")+
		" --ttl 1h --wait -o json")...).want(t, exitOK)
	return outcome(t, r).Subject
}

// lacks fails the test when the output contains any of texts.
func (r result) lacks(t *testing.T, texts ...string) result {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(r.out+r.errOut, text) {
			t.Errorf("the output contains %q\nout: %s\nerr: %s", text, r.out, r.errOut)
		}
	}
	return r
}

// TestHold_EachCommand_HidesUserUnlessRevealed shows a hold, lists it and shows its history.
func TestHold_EachCommand_HidesUserUnlessRevealed(t *testing.T) {
	t.Parallel()
	hall, user := fresh("hall"), fresh("ana")
	publisher(t, words("inventory set --resource-id "+hall+" --capacity 2 --wait")...).want(t, exitOK)
	id := requestHold(t, hall, user)
	for line, texts := range map[string][]string{
		"hold show --hold-id " + id:       {"hold held", id, hall},
		"hold list --resource-id " + hall: {"HOLD", id, "held"},
		"hold history --hold-id " + id:    {"WHAT", "booking.requested", "hold.created"},
	} {
		publisher(t, words(line)...).want(t, exitOK, texts...).lacks(t, user)
		publisher(t, words(line+" --reveal")...).want(t, exitOK, append(texts, user)...)
		publisher(t, words(line+" -o json")...).want(t, exitOK, `"`+id+`"`).lacks(t, user)
		publisher(t, words(line+" -o json --reveal")...).want(t, exitOK, `"`+id+`"`, user)
	}
}

// TestHoldList_Pages_ContinueAfterNext lists three holds by pages of two, and by user and state.
func TestHoldList_Pages_ContinueAfterNext(t *testing.T) {
	t.Parallel()
	hall := fresh("hall")
	list := "hold list --resource-id " + hall
	publisher(t, words("inventory set --resource-id "+hall+" --capacity 3 --wait")...).want(t, exitOK)
	publisher(t, words(list)...).want(t, exitOK, "no live holds")
	ids := map[string]bool{}
	for _, user := range []string{"ana", "ben", "cyd"} {
		ids[requestHold(t, hall, user)] = true
	}
	after := ""
	for _, number := range []int{2, 1} {
		r := publisher(t, words(list+" --limit 2 -o json"+after)...).want(t, exitOK)
		var page queries.HoldsPage
		if err := json.Unmarshal([]byte(r.out), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Holds) != number {
			t.Fatalf("a page of %d holds, want %d: %s", len(page.Holds), number, r.out)
		}
		for _, h := range page.Holds {
			if !ids[h.HoldID.String()] {
				t.Errorf("%s is listed twice, or is not of the resource", h.HoldID)
			}
			delete(ids, h.HoldID.String())
		}
		after = " --after " + page.Next
	}
	r := publisher(t, words(list+" --limit 2")...).want(t, exitOK, "see --after ")
	if n := strings.Count(r.out, " held "); n != 2 {
		t.Errorf("%d holds are printed, want 2:\n%s", n, r.out)
	}
	publisher(t, words(list+" --user-id ben --reveal")...).want(t, exitOK, "ben").lacks(t, "ana", "cyd")
	publisher(t, words(list+" --state confirming")...).want(t, exitOK, "no live holds")
}

// TestHoldList_BehindMoreThanAPageReads_IsFound lists the holds of a user behind those of more users than a worker reads for a
// page.
func TestHoldList_BehindMoreThanAPageReads_IsFound(t *testing.T) {
	t.Parallel()
	const others = 2000
	hall := fresh("hall")
	stock(t, others+1, hall)
	var lines strings.Builder
	for i := range others {
		lines.WriteString(shortRequest(hall, fmt.Sprint("k", i)) + "\n")
	}
	publisher(t, "load", "-f", fileOf(t, lines.String()), "--wait").want(t, exitOK)
	id := requestHold(t, hall, "eve")
	publisher(t, words("hold list --user-id eve --resource-id "+hall)...).want(t, exitOK, id).lacks(t, "no live holds")
	publisher(t, words("hold list --user-id zoe --resource-id "+hall)...).want(t, exitOK, "no live holds").lacks(t, "there may be more")
}

// TestHold_WrongUsage_ExitsUsage checks what the program refuses, and what a worker refuses.
func TestHold_WrongUsage_ExitsUsage(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"hold show", "hold show --hold-id none", "hold history --hold-id none", "hold list",
		"hold list --resource-id hall --state ended", "hold list --resource-id hall --limit 501",
		"inventory list --limit 501", "hold list --resource-id hall --user-id=", "hold list --resource-id hall --state=",
	} {
		if r := publisher(t, words(line)...).want(t, exitUsage).lacks(t, "bad_query"); r.out != "" {
			t.Errorf("%s: prints %s", line, r.out)
		}
	}
	publisher(t, words("inventory list --limit 501")...).want(t, exitUsage, "publisher: --limit: must be")
	publisher(t, words("inventory show --resource-id hall --check-in 2027-01-02 --check-out 2027-01-02")...).
		want(t, exitUsage, "publisher: --check-out: must be after check_in")
}

// TestHold_Unknown_IsReported queries a hold that never existed.
func TestHold_Unknown_IsReported(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"show", "history"} {
		publisher(t, words("hold "+command+" --hold-id "+someHold)...).
			want(t, exitFailed, "publisher: no hold with this id is remembered").lacks(t, "svc", "404")
	}
}

// TestHold_Tables_NameSlotsAndMainMembers lists a hold of nights and one of seats, and shows the history of one.
func TestHold_Tables_NameSlotsAndMainMembers(t *testing.T) {
	t.Parallel()
	hall := fresh("hall")
	day := func(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format(time.DateOnly) }
	nights := day(10) + ".." + day(12)
	stay, seats := " --check-in "+day(10)+" --check-out "+day(12), " --slot a,b,c,d,e,f"
	for i, slots := range []string{stay, seats} {
		publisher(t, words("inventory set --resource-id "+hall+slots+" --capacity 2 --wait")...).want(t, exitOK)
		publisher(t, words(fmt.Sprintf("request --resource-id %s --user-id u%d%s --ttl %dm --wait", hall, i, slots, 9-i))...).
			want(t, exitOK)
	}
	r := publisher(t, words("hold list --resource-id "+hall+" -o json")...).want(t, exitOK)
	var page queries.HoldsPage
	if err := json.Unmarshal([]byte(r.out), &page); err != nil {
		t.Fatal(err)
	}
	publisher(t, words("hold list --resource-id "+hall)...).want(t, exitOK, " a,b,c,d,+2\n", " "+nights+"\n").lacks(t, "{")
	publisher(t, words("hold history --hold-id "+page.Holds[1].HoldID.String())...).
		want(t, exitOK, "slots="+nights+" quantity=1 ttl_seconds=540\n", "expires_at=").lacks(t, "{")
}

// TestInventoryList_Prefix_ListsItsResources lists two resources by pages of one.
func TestInventoryList_Prefix_ListsItsResources(t *testing.T) {
	t.Parallel()
	prefix := fresh("list")
	for _, resource := range []string{prefix + "-a", prefix + "-b"} {
		publisher(t, words("inventory set --resource-id "+resource+" --capacity 4 --wait")...).want(t, exitOK)
	}
	requestHold(t, prefix+"-a", "ana")
	list := "inventory list --prefix " + prefix
	publisher(t, words(list)...).want(t, exitOK, "RESOURCE", "LIVE HOLDS", prefix+"-a", prefix+"-b")
	publisher(t, words(list+" --limit 1")...).want(t, exitOK, prefix+"-a", "see --after "+prefix+"-a").lacks(t, prefix+"-b")
	publisher(t, words(list+" --after "+prefix+"-a")...).want(t, exitOK, prefix+"-b").lacks(t, prefix+"-a")
	publisher(t, words(list+" -o json")...).want(t, exitOK, `"capacity":4`, `"live_holds":1`, `"live_holds":0`)
	publisher(t, words("inventory list --prefix "+fresh("none"))...).want(t, exitOK, "no resources")
}
