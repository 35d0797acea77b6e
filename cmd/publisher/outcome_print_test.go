package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/members"
	"holdfast/internal/stack/stacktest"
)

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

func TestExplain_Request_PrintsWholeMessage(t *testing.T) {
	t.Parallel()
	const want = `Subject: hotel.in.booking.cancelled.loft
Headers:
  Content-Type: application/cloudevents+json
  Nats-Msg-Id: /holdfast/publisher#ID
Body:
  {
    "specversion": "1.0",
    "id": "ID",
    "source": "/holdfast/publisher",
    "type": "holdfast.booking.cancelled.v1",
    "datacontenttype": "application/json",
    "data": {
      "resource_id": "loft",
      "request_key": "it's"
    }
  }
The same with the nats command:
  nats pub --jetstream hotel.in.booking.cancelled.loft --server nats://127.0.0.1:1 --header Content-Type:application/cloudevents+json --header 'Nats-Msg-Id:/holdfast/publisher#ID' '{"specversion":"1.0","id":"ID","source":"/holdfast/publisher","type":"holdfast.booking.cancelled.v1","datacontenttype":"application/json","data":{"resource_id":"loft","request_key":"it'\''s"}}'
`
	r := publisher(t, words("cancel --resource-id loft --request-key it's --explain --namespace hotel --nats-url nats://127.0.0.1:1")...)
	if got := uuids.ReplaceAllString(r.want(t, exitOK).out, "ID"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// As JSON: subject, headers and body in one value.
	r = publisher(t, words("cancel --resource-id loft --request-key it's --explain --namespace hotel --nats-url nats://127.0.0.1:1 -o json")...)
	const asJSON = `{"subject":"hotel.in.booking.cancelled.loft","headers":{"Content-Type":"application/cloudevents+json","Nats-Msg-Id":"/holdfast/publisher#ID"},` +
		`"body":{"specversion":"1.0","id":"ID","source":"/holdfast/publisher","type":"holdfast.booking.cancelled.v1",` +
		`"datacontenttype":"application/json","data":{"resource_id":"loft","request_key":"it's"}}}` + "\n"
	if got := uuids.ReplaceAllString(r.want(t, exitOK).out, "ID"); got != asJSON {
		t.Errorf("got\n%s\nwant\n%s", got, asJSON)
	}
	secret := publisher(t, words("cancel --resource-id loft --request-key k --explain --nats-url nats://ann:secret@127.0.0.1:1")...).want(t, exitOK)
	if strings.Contains(secret.out, "secret") {
		t.Errorf("printed a password: %s", secret.out)
	}
}

// TestExplain_NATSCommand_IsQuotedForShell parses the nats command with a shell. Its words are hard to quote.
func TestExplain_NATSCommand_IsQuotedForShell(t *testing.T) {
	t.Parallel()
	const metadata = `{"note":"it's $HOME ` + "`id`" + ` \\ {{.}} \u009b2J","ümlaut":"\u202e"}`
	r := publisher(t, "request", "--resource-id", "loft", "--user-id", "ann", "--request-key", "k", "--metadata", metadata,
		"--explain", "--nats-url", "nats://127.0.0.1:1").want(t, exitOK)
	_, line, _ := strings.Cut(r.out, "nats pub ")
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `nats() { printf '%s\n' "$@"; }; nats pub `+line).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(got) != 10 || got[2] != "holdfast.in.booking.requested.loft" ||
		got[6] != "Content-Type:application/cloudevents+json" {
		t.Fatalf("the shell reads %q", got)
	}
	var e events.Envelope
	var data events.BookingRequestedData
	if err := json.Unmarshal([]byte(got[9]), &e); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		t.Fatal(err)
	}
	if got, want := canonical(t, data.Metadata), canonical(t, jsontext.Value(metadata)); !bytes.Equal(got, want) {
		t.Errorf("metadata %s, want %s", got, want)
	}
	if strings.Contains(got[8], "{{") {
		t.Errorf("the nats command may read this as a template: %s", got[8])
	}
	if strings.ContainsAny(r.out, "\u009b\u202e") {
		t.Errorf("printed control characters: %q", r.out)
	}
}

func canonical(t *testing.T, value jsontext.Value) jsontext.Value {
	t.Helper()
	value = value.Clone()
	if err := value.Canonicalize(); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestPrintReply_EachReply_PageAndExitCode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer client.Reply
		code   int
		want   string
	}{
		"sold out": {
			newReply("hold.rejected", `{"resource_id":"loft","user_id":"ann","slots":["A-1","A-2"],"quantity":2,"metadata":{"a": "\u001b[2J"},`+
				`"reason":"sold_out","message":"not enough left","unavailable":[{"slot":"A-1","capacity":12,"reserved":3,"held":9},`+
				`{"slot":"A-2","capacity":1,"reserved":1,"held":0}],"retry_at":null}`),
			exitRejected,
			`hold.rejected: sold_out (not enough left)
  resource_id  loft
  user_id      ann
  slots        A-1, A-2
  quantity     2
  metadata     {"a":"\u001b[2J"}
  reason       sold_out
  message      not enough left
  retry_at     -

unavailable:
SLOT  CAPACITY  RESERVED  HELD
──────────────────────────────
A-1         12         3     9
A-2          1         1     0
`,
		},
		"confirmed": {
			newReply("hold.confirmed", `{"resource_id":"loft","late":true}`), exitOK,
			"hold.confirmed\n  resource_id  loft\n  late         true\n",
		},
		"dead": {
			client.Reply{DeadLetter: &events.DeadLetterReply{Error: "malformed",
				Detail: "data.\x1b[2Jslots: \u202ex"}}, exitDeadLettered,
			"dead-lettered: malformed\n  detail  data.\\x1b[2Jslots: \\u202ex\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			p := newProgram(&out, &out)
			if code := exitCode(p.printReply(c.answer)); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if out.String() != c.want {
				t.Errorf("got\n%s\nwant\n%s", out.String(), c.want)
			}
		})
	}
	p := newProgram(&bytes.Buffer{}, &bytes.Buffer{})
	for _, data := range []string{``, `[]`, `{"a":`} {
		if err := p.printReply(newReply("hold.created", data)); exitCode(err) != exitFailed ||
			strings.Contains(err.Error(), "%!") {
			t.Errorf("data %q: %v", data, err)
		}
	}
}

func newReply(event, data string) client.Reply {
	return client.Reply{Envelope: events.Envelope{Type: events.Type(event), Data: jsontext.Value(data)}}
}

// TestJSONOutput_StoredEvent_IsByteIdentical compares the output of -o json with the stored event.
func TestJSONOutput_StoredEvent_IsByteIdentical(t *testing.T) {
	t.Parallel()
	r := publisher(t, "request", "--resource-id", "bytes", "--user-id", "ann", "--metadata", "{\"a\":\"<é\u009b&\"}",
		"--wait", "-o", "json").
		want(t, exitRejected, "unknown_resource")
	p := newProgram(&bytes.Buffer{}, &bytes.Buffer{})
	if err := p.setDefaults(); err != nil {
		t.Fatal(err)
	}
	url, err := p.natsURL()
	if err != nil {
		t.Fatal(err)
	}
	js := stacktest.ConnectNATS(t, url)
	out, err := js.Stream(t.Context(), p.namespace().OutStream())
	if err != nil {
		t.Fatal(err)
	}
	stored, err := out.GetLastMsgForSubject(t.Context(), p.namespace().Out("hold.rejected", "bytes"))
	if err != nil {
		t.Fatal(err)
	}
	if r.out != string(stored.Data)+"\n" {
		t.Errorf("printed %q, stored %q", r.out, stored.Data)
	}
}

func TestEssentials_EachEvent_OneLine(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		`{"hold_id":"h","user_id":"ann","check_in":"2027-05-01","check_out":"2027-05-03","quantity":1,"expires_at":"2027-01-01T00:00:00.000Z"}`: `user=ann slots=2027-05-01..2027-05-03 quantity=1 expires_at=2027-01-01T00:00:00.000Z`,
		`{"slots":["A","B","C","D","E","F"],"reason":"sold_out","message":"m","retry_at":null}`:                                                 `slots=A,B,C,D,+2 reason=sold_out retry_at=-`,
		`{"slots":[{"slot":"A","capacity":3},{"slot":"B","capacity":3}]}`:                                                                       `slots=A,B capacity=3`,
		`{"unavailable":[{"slot":"A","capacity":3}],"reason":"two words\u001b"}`:                                                                `unavailable=A reason="two words\\x1b"`,
	} {
		object, err := members.Parse("the data", []byte(data))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(essentials(object, true), " "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestEssentials_WithoutReveal_LackTheUser(t *testing.T) {
	t.Parallel()
	object, err := members.Parse("the data", []byte(`{"user_id":"ann","quantity":1}`))
	if got := strings.Join(essentials(object, false), " "); err != nil || got != "quantity=1" {
		t.Errorf("%v: %s", err, got)
	}
}

func TestPrintCompact_AnyJSON_OneLine(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	p := newProgram(&out, &errOut)
	for _, value := range []string{"{\"a\":\n1}", `{"b": 2}`, "no JSON\x1b"} {
		if err := p.printCompact(jsontext.Value(value)); err != nil {
			t.Error(err)
		}
	}
	if want := "{\"a\":1}\n{\"b\": 2}\n"; out.String() != want || !strings.Contains(errOut.String(), "not JSON") {
		t.Errorf("got %q, and %q", out.String(), errOut.String())
	}
}

// TestEndpoints_FlagsVariablesFile_Precedence changes the directory, so it is not parallel.
func TestEndpoints_FlagsVariablesFile_Precedence(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{nameNATSURL, nameNamespace} {
		t.Setenv(name, "")
	}
	const ask = "request --resource-id loft --user-id ann --timeout 1s"
	publisher(t, words(ask)...).want(t, exitUsage, "worker dev", "--nats-url", "--data-dir", ".holdfast/endpoints.env")
	publisher(t, words(ask+" --explain")...).want(t, exitOK,
		"nats pub --jetstream holdfast.in.booking.requested.loft --header")

	if err := os.Mkdir(filepath.Dir(endpointsPath), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(content string) {
		if err := os.WriteFile(endpointsPath, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# a comment\nHOLDFAST_NATS_URL=nats://127.0.0.1:1\nHOLDFAST_NAMESPACE=hotel\n")
	publisher(t, words(ask+" --explain")...).want(t, exitOK,
		"nats pub --jetstream hotel.in.booking.requested.loft --server nats://127.0.0.1:1 ")
	publisher(t, words(ask)...).want(t, exitFailed, "connect to nats at nats://127.0.0.1:1", "worker dev")
	// A flag precedes a variable, and a variable the file.
	t.Setenv(nameNATSURL, "nats://127.0.0.1:3")
	publisher(t, words(ask+" --explain")...).want(t, exitOK,
		"nats pub --jetstream holdfast.in.booking.requested.loft --server nats://127.0.0.1:3 ")
	publisher(t, words(ask+" --explain --nats-url nats://127.0.0.1:4 --namespace inn")...).want(t, exitOK,
		"nats pub --jetstream inn.in.booking.requested.loft --server nats://127.0.0.1:4 ")
	given := publisher(t, words(ask)...).want(t, exitFailed, "connect to nats at nats://127.0.0.1:3")
	if strings.Contains(given.errOut, "worker dev") {
		t.Errorf("advice to start worker dev although a URL is given: %s", given.errOut)
	}
	t.Setenv(nameNATSURL, "")
	// The same with another data directory.
	elsewhere := filepath.Join(t.TempDir(), "data")
	if err := os.Rename(filepath.Dir(endpointsPath), elsewhere); err != nil {
		t.Fatal(err)
	}
	publisher(t, words(ask+" --explain --data-dir "+elsewhere)...).want(t, exitOK,
		"nats pub --jetstream hotel.in.booking.requested.loft --server nats://127.0.0.1:1 ")
	t.Setenv("HOLDFAST_DATA_DIR", elsewhere)
	publisher(t, words(ask+" --explain")...).want(t, exitOK,
		"nats pub --jetstream hotel.in.booking.requested.loft --server nats://127.0.0.1:1 ")
	t.Setenv("HOLDFAST_DATA_DIR", "")
	if err := os.Rename(elsewhere, filepath.Dir(endpointsPath)); err != nil {
		t.Fatal(err)
	}
	write("nonsense\n")
	publisher(t, words(ask)...).want(t, exitFailed, "endpoints.env:1")
}
