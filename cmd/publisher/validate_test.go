package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

const someHold = "loft.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"

// short is an event in the short form.
func short(event, data string) string { return `{"event":"` + event + `","data":` + data + `}` }

// whole is an event as a CloudEvent, with more attributes.
func whole(event, more, data string) string {
	return `{"specversion":"1.0","id":"e1","source":"/s","type":"holdfast.` + event + `.v1"` + more + `,"data":` + data + `}`
}

// asked is the data of a request with more members.
func asked(more string) string {
	return `{"request_key":"k","user_id":"u","resource_id":"loft","quantity":1` + more + `}`
}

// goodLines are events that a worker decides, with what validate says of them.
var goodLines = map[string]string{
	short("booking.requested", asked(``)): "ok booking.requested loft",
	"\t " + short("booking.requested", asked(`,"check_in":"2027-05-01","check_out":"2027-05-03"`)) + " ": "ok booking.requested loft",
	short("booking.requested", asked(`,"metadata":{"event":"x","é":[1.5,null]},"quantity2":1e999`)):      "ok booking.requested loft",
	short("booking.requested", strings.Replace(asked(``), `:1`, `:0`, 1)):                                "ok booking.requested loft",
	short("inventory.set", `{"resource_id":"loft","capacity":-1}`):                                       "ok inventory.set loft",
	short("payment.confirmed", `{"hold_id":"`+someHold+`","payment_id":"p"}`):                            "ok payment.confirmed loft",
	short("booking.cancelled", `{"hold_id":"`+someHold+`"}`):                                             "ok booking.cancelled loft",
	whole("booking.requested", `,"event":"not the short form"`, asked(``)):                               "ok booking.requested loft",
	whole("booking.requested", `,"time":"2026-11-21T09:00:00Z","traceparent":"00-1-2-01"`, asked(``)):    "ok booking.requested loft",
	"\v" + short("booking.requested", asked(``)):                                                         "",
}

// badLines are events that a worker dead-letters.
var badLines = []string{
	`nonsense`, `7`, `null`, `[]`, `{`, `{}`, `{"data":{}}`, `"event"`, "\xff", `{"event":"booking.requested"`,
	short("booking.requested", asked(``)) + ` {}`,
	short("booking.requested", asked(``)) + `,`,
	`{"event":"booking.requested","event":"booking.cancelled","data":{}}`,
	short("booking.requested", `{"request_key":"k","request_key":"k"}`),
	short("booking.requested", asked(`,"metadata":{"a":{"b":1,"b":2}}`)),
	short("booking.requested", asked(`,"x":"`+"\xed\xa0\x80"+`"`)),
	short("booking.requested", asked(`,"x":"\ud800"`)),
	short("booking.requested", asked(`,"x":`+strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000))),
	`{"event":"booking.requested"}`, short("booking.requested", `null`), short("booking.requested", `[]`), short("booking.requested", `{}`),
	`{"event":"","data":{}}`, short("booking.imagined", `{}`), short("Booking.Requested", asked(``)), short("inventory", `{}`),
	short(`\u001b[2J\u009b\u202e`, `{}`), short(`é`, `{}`), short(strings.Repeat("long", 300), `{}`), short("*", `{}`), short(">", `{}`),
	short("booking.requested", strings.Replace(asked(``), `:1`, `:1.0`, 1)),
	short("booking.requested", strings.Replace(asked(``), `:1`, `:9223372036854775808`, 1)),
	short("booking.requested", strings.Replace(asked(``), `:1`, `:"1"`, 1)),
	short("booking.requested", strings.Replace(asked(``), `loft`, `lo.ft`, 1)),
	short("booking.requested", strings.Replace(asked(``), `loft`, `{loft}`, 1)),
	short("booking.requested", strings.Replace(asked(``), `loft`, `loft\n`, 1)),
	short("booking.requested", strings.Replace(asked(``), `"k"`, `"k k"`, 1)),
	short("booking.requested", strings.Replace(asked(``), `"u"`, `""`, 1)),
	short("booking.requested", strings.Replace(asked(``), `"request_key"`, `"Request_Key"`, 1)),
	short("booking.requested", asked(`,"check_in":"2026-02-30","check_out":"2026-03-02"`)),
	short("booking.requested", asked(`,"check_in":"2027-05-01"`)),
	short("booking.requested", asked(`,"check_in":"2027-05-01","check_out":"2027-05-03","slots":["A"]`)),
	short("booking.requested", asked(`,"slots":["A","A"]`)), short("booking.requested", asked(`,"slots":[]`)),
	short("booking.requested", asked(`,"ttl_seconds":null`)),
	short("booking.requested", asked(`,"metadata":[]`)),
	short("booking.requested", asked(`,"metadata":{"a":"`+strings.Repeat("x", 5000)+`"}`)),
	short("booking.requested", asked(`,"pad":"`+strings.Repeat("x", events.BodyMax)+`"`)),
	short("booking.cancelled", `{"hold_id":"`+someHold+`","request_key":"k"}`), short("booking.cancelled", `{"hold_id":"`+strings.ToUpper(someHold)+`"}`),
	short("payment.confirmed", `{"hold_id":"`+someHold+`","payment_id":"p","amount":1.5}`),
	short("inventory.set", `{"resource_id":"loft","capacity":"1"}`),
	short("booking.extended", `{"hold_id":"`+someHold+`"}`), short("payment.started", `{}`), short("reservation.cancelled", `{"hold_id":"`+someHold+`","reason":1}`),
	whole("booking.requested", `,"id":"e2"`, asked(``)), whole("booking.requested", `,"time":"today"`, asked(``)),
	whole("booking.requested", `,"b-b":1,"a-a":1,"subject":5,"ext":{}`, asked(``)),
	whole("booking.requested", `,"`+strings.Repeat("é", 300)+`":1`, asked(``)),
	whole("booking.requested", `,"data_base64":"e30="`, asked(``)), whole("booking.requested", `,"datacontenttype":"text/xml"`, asked(``)),
	strings.Replace(whole("booking.requested", ``, asked(``)), `"1.0"`, `"0.3"`, 1), strings.Replace(whole("booking.requested", ``, asked(``)), `"1.0"`, `1.0`, 1),
	strings.Replace(whole("booking.requested", ``, asked(``)), `"/s"`, `"a b"`, 1), strings.Replace(whole("booking.requested", ``, asked(``)), `"e1"`, `""`, 1),
	strings.Replace(whole("booking.requested", ``, asked(``)), `"e1"`, `"\u001b[2J"`, 1), strings.Replace(whole("booking.requested", ``, asked(``)), `.v1`, `.v2`, 1),
	strings.Replace(whole("booking.requested", ``, asked(``)), `holdfast.`, `com.example.`, 1), whole("hold.created", ``, `{}`),
	whole("booking.requested", ``, asked(`,"pad":"`+strings.Repeat("x", events.BodyMax)+`"`)),
}

// verdicts runs validate over a text and reads what it says.
func verdicts(t *testing.T, text string, code int, args ...string) (list []verdict) {
	t.Helper()
	r := runWith(t.Context(), strings.NewReader(text), append([]string{"validate", "-f", "-", "-o", "json", "--nats-url", "nats://127.0.0.1:1"}, args...)...)
	if err := json.Unmarshal([]byte(r.want(t, code).out), &list, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("not one JSON value: %v\n%s", err, r.out)
	}
	return list
}

// TestValidateIsTheWorkersWord has a worker make dead letters of everything that validate finds
// bad. Reason and detail are the same, byte for byte. What validate finds good is decided.
func TestValidateIsTheWorkersWord(t *testing.T) {
	t.Parallel()
	namespace := stacktest.Namespace(t)
	flags := serverFlags(t)
	runWorker(t, namespace, flags...)
	p := newProgram(io.Discard, io.Discard)
	p.Namespace, p.NATSURL, p.Timeout = namespace, flags[1], time.Minute
	client, disconnect, err := p.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer disconnect()
	// ask publishes what a line means, on a subject or where it belongs, and returns the answer.
	ask := func(text, subject string) events.Answer {
		t.Helper()
		c, _ := p.compose([]byte(text), "") // of bad lines there is a message, too
		if c.message == nil {
			t.Fatalf("no message of %.200q", text)
		}
		if subject == "" {
			subject = c.message.Subject
		}
		if subject == "" {
			subject = p.subjects().In(events.BookingRequested, "loft")
		}
		c.message.Subject = subject
		c.message.Header.Del(jetstream.MsgIDHeader) // many have the same
		answer, err := client.Ask(stacktest.Patience(t), c.message)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}

	said := verdicts(t, strings.Join(badLines, "\n"), exitDeadLettered, "--namespace", namespace)
	if len(said) != len(badLines) {
		t.Fatalf("%d verdicts of %d lines", len(said), len(badLines))
	}
	var letters []verdict
	for i, text := range badLines {
		if answer := ask(text, ""); answer.Dead == nil {
			t.Errorf("%.200q is no dead letter: %s", text, answer.Body)
		} else if said[i].Line != i+1 || said[i].OK || said[i].Reason != answer.Dead.Error || said[i].Detail != answer.Dead.Detail {
			t.Errorf("%.200q: validate says %+v, the worker %+v", text, said[i], *answer.Dead)
		}
		letters = append(letters, said[i])
	}
	good := whole("booking.requested", ``, asked(``))
	for _, subject := range []string{"in.booking.requested.hut", "in.booking.cancelled.loft", "in.booking.requested.loft.more", "in.booking"} {
		subject = namespace + "." + subject
		said := verdicts(t, good+"\n"+`{}`, exitDeadLettered, "--namespace", namespace, "--subject", subject)
		for i, text := range []string{good, `{}`} {
			if answer := ask(text, subject); answer.Dead == nil || said[i].Reason != answer.Dead.Error || said[i].Detail != answer.Dead.Detail {
				t.Errorf("%q on %s: validate says %+v, the worker %s", text, subject, said[i], answer.Body)
			}
			letters = append(letters, said[i])
		}
		if said[0].Reason != events.ReasonSubjectMismatch {
			t.Errorf("%s: %+v", subject, said[0])
		}
	}
	publisher(t, "validate", "-f", fileOf(t, good), "--namespace", namespace, "--subject", namespace+".in.booking.requested.loft").want(t, exitOK, "1: ok")

	// What the dead letters themselves have on them.
	js := migrated(t, namespace)
	dlq, err := js.OrderedConsumer(t.Context(), p.subjects().DLQStream(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range letters {
		m, err := dlq.Next(jetstream.FetchMaxWait(time.Minute))
		if err != nil {
			t.Fatalf("letter %d: %v", i, err)
		}
		if reason, detail := m.Headers().Get("Holdfast-Dlq-Reason"), m.Headers().Get("Holdfast-Dlq-Detail"); reason != want.Reason || detail != want.Detail {
			t.Errorf("letter %d: %s: %s, validate says %+v", i, reason, detail, want)
		}
	}

	for text, want := range goodLines {
		if want == "" {
			continue
		}
		if answer := ask(text, ""); answer.Dead != nil {
			t.Errorf("%s: %+v", text, answer.Dead)
		}
	}
}

// TestValidatePrints compares what validate prints, without any server or endpoints.
func TestValidatePrints(t *testing.T) {
	t.Parallel()
	for text, want := range goodLines {
		if want == "" {
			want = "malformed: body: not one JSON text in UTF-8, at byte 0"
		}
		r := runWith(t.Context(), strings.NewReader(text), "validate", "-f", "-", "--nats-url", "nats://127.0.0.1:1")
		if r.out != "1: "+want+"\n" {
			t.Errorf("%q: %s%s", text, r.out, r.errOut)
		}
	}
	// What only we can say: what is nearly the short form.
	for text, want := range map[string]string{
		`{"event":"booking.requested","data":{},"id":"1"}`: "malformed: id: unknown, the short form of an event has event and data",
		`{"event":5,"data":{}}`:                            "malformed: event: must be a string, found a number",
		`{"event":null}`:                                   "malformed: event: must be a string, found null",
		`{"event":"x","\u001b[2J":1}`:                      `malformed: \x1b[2J: unknown, the short form of an event has event and data`,
		strings.Repeat("x", lineMax+1):                     "too_large: the line is longer than 128 KiB",
	} {
		r := runWith(t.Context(), strings.NewReader(text), "validate", "-f", "-").want(t, exitDeadLettered)
		if r.out != "1: "+want+"\n" {
			t.Errorf("%.200q: %s%s", text, r.out, r.errOut)
		}
	}
	const file = "\xef\xbb\xbf" + `{"event":"inventory.set","data":{"resource_id":"loft","capacity":1}}` + "\r\n\r\n \t\nnonsense\r\n" + `{"event":"inventory.set","data":{"resource_id":"loft","capacity":1}}`
	const want = "1: ok inventory.set loft\n4: malformed: body: not one JSON text in UTF-8, at byte 1\n5: ok inventory.set loft\n"
	if r := publisher(t, "validate", "-f", fileOf(t, file)).want(t, exitDeadLettered); r.out != want {
		t.Errorf("got\n%s\nwant\n%s", r.out, want)
	}
	if list := verdicts(t, file, exitDeadLettered); len(list) != 3 || list[1] != (verdict{Line: 4, Reason: "malformed", Detail: "body: not one JSON text in UTF-8, at byte 1"}) {
		t.Errorf("%+v", list)
	}
	if list := verdicts(t, "\n\n", exitOK); list == nil || len(list) != 0 {
		t.Errorf("of nothing it says %+v", list)
	}
	if r := publisher(t, "validate", "-f", fileOf(t, file), "-o", "ndjson").want(t, exitDeadLettered); strings.Count(r.out, "\n") != 3 || !strings.HasPrefix(r.out, `{"line":1,"ok":true,`) {
		t.Errorf("got\n%s", r.out)
	}
	publisher(t, "validate", "-f", "nowhere.json").want(t, exitUsage, "nowhere.json")
}

// TestValidateOverSeveralLines takes an event that is written over several lines for one, and
// lines of which the first is broken for lines.
func TestValidateOverSeveralLines(t *testing.T) {
	t.Parallel()
	pretty := "{\n  \"event\": \"booking.requested\",\n  \"data\": {\n    \"request_key\": \"k\", \"user_id\": \"u\",\n    \"resource_id\": \"loft\",\n    \"quantity\": 1\n  }\n}\n"
	event := strings.Replace(whole("booking.requested", ``, asked(``)), `{"specversion":"1.0",`, "{ \"specversion\": \"1.0\",\n\n", 1)
	line := short("booking.requested", asked(``))
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"short":            {pretty, "1: ok booking.requested loft\n"},
		"whole":            {event, "1: ok booking.requested loft\n"},
		"later":            {"\n\n" + pretty, "3: ok booking.requested loft\n"},
		"two":              {pretty + pretty, fmt.Sprintf("1: malformed: body: not one JSON text in UTF-8, at byte %d\n", len(pretty))},
		"a comma too much": {strings.Replace(pretty, "1\n", "1,\n", 1), fmt.Sprintf("1: malformed: body: not one JSON text in UTF-8, at byte %d\n", strings.Index(pretty, "1\n")+len("1,\n  "))},
		"cut":              {pretty[:60], "1: malformed: body: the JSON text ends too early\n"},
		"a broken line":    {line[:20] + "\n" + line, "1: malformed: body: the JSON text ends too early\n2: ok booking.requested loft\n"},
		"only broken":      {line[:20], "1: malformed: body: the JSON text ends too early\n"},
		"large":            {strings.Replace(pretty, "\n}", strings.Repeat("\n", events.BodyMax)+"}", 1), "1: ok booking.requested loft\n"},
		"large event":      {strings.Replace(event, "\n\n", strings.Repeat("\n", events.BodyMax), 1), "1: too_large: the body is larger than 64 KiB\n"},
		"huge":             {strings.Replace(event, "\n\n", "\n"+strings.Repeat(" ", 10*lineMax), 1), "1: too_large: the body is larger than 64 KiB\n"},
	} {
		for _, ending := range []string{"\n", "\r\n"} {
			text := strings.ReplaceAll(c.text, "\n", ending)
			r := runWith(t.Context(), strings.NewReader(text), "validate", "-f", "-")
			if ending == "\n" && r.out != c.want || strings.Count(r.out, "\n") != strings.Count(c.want, "\n") {
				t.Errorf("%s: got %s%s, want %s", name, r.out, r.errOut, c.want)
			}
		}
	}
	// The offset is that in the file, with the line ends that it has.
	r := runWith(t.Context(), strings.NewReader(strings.ReplaceAll("{\n\"a\":1,\n\n}", "\n", "\r\n")), "validate", "-f", "-")
	if want := fmt.Sprintf("1: malformed: body: not one JSON text in UTF-8, at byte %d\n", len("{\r\n\"a\":1")); r.out != want {
		t.Errorf("got %s, want %s", r.out, want)
	}
}
