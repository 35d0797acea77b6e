package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

const someHold = "loft.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"

// short returns an event in the short form.
func short(event, data string) string { return `{"event":"` + event + `","data":` + data + `}` }

// whole returns an event as a CloudEvent with the additional attributes more.
func whole(event, more, data string) string {
	return `{"specversion":"1.0","id":"e1","source":"/s","type":"holdfast.` + event + `.v1"` + more + `,"data":` + data + `}`
}

// requestData returns the data of a request with the additional members more.
func requestData(more string) string {
	return `{"request_key":"k","user_id":"u","resource_id":"loft","quantity":1` + more + `}`
}

// goodLines are events that a worker accepts, with the output of validate.
var goodLines = map[string]string{
	short("booking.requested", requestData(``)):                                                                "ok booking.requested loft",
	"\t " + short("booking.requested", requestData(`,"check_in":"2027-05-01","check_out":"2027-05-03"`)) + " ": "ok booking.requested loft",
	short("booking.requested", requestData(`,"metadata":{"event":"x","é":[1.5,null]},"quantity2":1e999`)):      "ok booking.requested loft",
	short("booking.requested", strings.Replace(requestData(``), `:1`, `:0`,
		1)): "ok booking.requested loft",
	short("inventory.set", `{"resource_id":"loft","capacity":-1}`):            "ok inventory.set loft",
	short("payment.confirmed", `{"hold_id":"`+someHold+`","payment_id":"p"}`): "ok payment.confirmed loft",
	short("booking.cancelled", `{"hold_id":"`+someHold+`"}`):                  "ok booking.cancelled loft",
	whole("booking.requested", `,"event":"not the short form"`,
		requestData(``)): "ok booking.requested loft",
	whole("booking.requested", `,"time":"2026-11-21T09:00:00Z","traceparent":"00-1-2-01"`,
		requestData(``)): "ok booking.requested loft",
	"\v" + short("booking.requested", requestData(``)): "",
}

// badLines are events that a worker dead-letters.
var badLines = []string{
	`nonsense`, `7`, `null`, `[]`, `{`, `{}`, `{"data":{}}`, `"event"`, "\xff", `{"event":"booking.requested"`,
	short("booking.requested", requestData(``)) + ` {}`,
	short("booking.requested", requestData(``)) + `,`,
	`{"event":"booking.requested","event":"booking.cancelled","data":{}}`,
	short("booking.requested", `{"request_key":"k","request_key":"k"}`),
	short("booking.requested", requestData(`,"metadata":{"a":{"b":1,"b":2}}`)),
	short("booking.requested", requestData(`,"x":"`+"\xed\xa0\x80"+`"`)),
	short("booking.requested", requestData(`,"x":"\ud800"`)),
	short("booking.requested", requestData(`,"x":`+strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000))),
	`{"event":"booking.requested"}`, short("booking.requested", `null`), short("booking.requested",
		`[]`), short("booking.requested", `{}`),
	`{"event":"","data":{}}`, short("booking.imagined", `{}`), short("Booking.Requested",
		requestData(``)), short("inventory", `{}`),
	short(`\u001b[2J\u009b\u202e`, `{}`), short(`é`, `{}`), short(strings.Repeat("long", 300), `{}`), short("*",
		`{}`), short(">", `{}`),
	short("booking.requested", strings.Replace(requestData(``), `:1`, `:1.0`, 1)),
	short("booking.requested", strings.Replace(requestData(``), `:1`, `:9223372036854775808`, 1)),
	short("booking.requested", strings.Replace(requestData(``), `:1`, `:"1"`, 1)),
	short("booking.requested", strings.Replace(requestData(``), `loft`, `lo.ft`, 1)),
	short("booking.requested", strings.Replace(requestData(``), `loft`, `{loft}`, 1)),
	short("booking.requested", strings.Replace(requestData(``), `loft`, `loft\n`, 1)),
	short("booking.requested", strings.Replace(requestData(``), `"k"`, `"k k"`, 1)),
	short("booking.requested", strings.Replace(requestData(``), `"u"`, `""`, 1)),
	short("booking.requested", strings.Replace(requestData(``), `"request_key"`, `"Request_Key"`, 1)),
	short("booking.requested", requestData(`,"check_in":"2026-02-30","check_out":"2026-03-02"`)),
	short("booking.requested", requestData(`,"check_in":"2027-05-01"`)),
	short("booking.requested", requestData(`,"check_in":"2027-05-01","check_out":"2027-05-03","slots":["A"]`)),
	short("booking.requested", requestData(`,"slots":["A","A"]`)), short("booking.requested", requestData(`,"slots":[]`)),
	short("booking.requested", requestData(`,"ttl_seconds":null`)),
	short("booking.requested", requestData(`,"metadata":[]`)),
	short("booking.requested", requestData(`,"metadata":{"a":"`+strings.Repeat("x", 5000)+`"}`)),
	short("booking.requested", requestData(`,"pad":"`+strings.Repeat("x", events.BodyMax)+`"`)),
	short("booking.cancelled", `{"hold_id":"`+someHold+`","request_key":"k"}`), short("booking.cancelled",
		`{"hold_id":"`+strings.ToUpper(someHold)+`"}`),
	short("payment.confirmed", `{"hold_id":"`+someHold+`","payment_id":"p","amount":1.5}`),
	short("inventory.set", `{"resource_id":"loft","capacity":"1"}`),
	short("booking.extended", `{"hold_id":"`+someHold+`"}`), short("payment.started", `{}`), short("reservation.cancelled",
		`{"hold_id":"`+someHold+`","reason":1}`),
	whole("booking.requested", `,"id":"e2"`, requestData(``)), whole("booking.requested", `,"time":"today"`,
		requestData(``)),
	whole("booking.requested", `,"b-b":1,"a-a":1,"subject":5,"ext":{}`, requestData(``)),
	whole("booking.requested", `,"`+strings.Repeat("é", 300)+`":1`, requestData(``)),
	whole("booking.requested", `,"data_base64":"e30="`, requestData(``)), whole("booking.requested",
		`,"datacontenttype":"text/xml"`, requestData(``)),
	strings.Replace(whole("booking.requested", ``, requestData(``)), `"1.0"`, `"0.3"`,
		1), strings.Replace(whole("booking.requested", ``, requestData(``)), `"1.0"`, `1.0`, 1),
	strings.Replace(whole("booking.requested", ``, requestData(``)), `"/s"`, `"a b"`,
		1), strings.Replace(whole("booking.requested", ``, requestData(``)), `"e1"`, `""`, 1),
	strings.Replace(whole("booking.requested", ``, requestData(``)), `"e1"`, `"\u001b[2J"`,
		1), strings.Replace(whole("booking.requested", ``, requestData(``)), `.v1`, `.v2`, 1),
	strings.Replace(whole("booking.requested", ``, requestData(``)), `holdfast.`, `com.example.`, 1), whole("hold.created",
		``, `{}`),
	whole("booking.requested", ``, requestData(`,"pad":"`+strings.Repeat("x", events.BodyMax)+`"`)),
}

// validateText runs validate on a text and parses its output.
func validateText(t *testing.T, text string, code int, args ...string) (list []validation) {
	t.Helper()
	r := runWith(t.Context(), strings.NewReader(text), append([]string{"validate", "-f", "-", "-o", "json", "--nats-url",
		"nats://127.0.0.1:1"}, args...)...)
	if err := json.Unmarshal([]byte(r.want(t, code).out), &list, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("not one JSON value: %v\n%s", err, r.out)
	}
	return list
}

// TestValidate_EachLine_AgreesWithWorker publishes the lines. A worker dead-letters the bad ones, with the reason and
// detail of validate byte for byte, and accepts the good ones.
func TestValidate_EachLine_AgreesWithWorker(t *testing.T) {
	t.Parallel()
	namespace := stacktest.Namespace(t)
	flags := serverFlags(t)
	startWorker(t, append(flags, "--namespace", namespace)...)
	p := newProgram(io.Discard, io.Discard)
	p.Namespace, p.NATSURL, p.Timeout = namespace, flags[1], time.Minute
	cl, err := p.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.disconnect()
	// ask publishes the event of a line, on a given subject or its own, and returns the reply.
	ask := func(text, subject string) client.Reply {
		t.Helper()
		c, _ := p.compose([]byte(text), "") // bad lines have a message too
		if c.message == nil {
			t.Fatalf("no message of %.200q", text)
		}
		if subject == "" {
			subject = c.message.Subject
		}
		if subject == "" {
			subject = p.namespace().In(events.BookingRequested, "loft")
		}
		c.message.Subject = subject
		c.message.Header.Del(jetstream.MsgIDHeader) // many are equal
		answer, err := cl.Request(stacktest.WaitContext(t), c.message)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}

	result := validateText(t, strings.Join(badLines, "\n"), exitDeadLettered, "--namespace", namespace)
	if len(result) != len(badLines) {
		t.Fatalf("%d results for %d lines", len(result), len(badLines))
	}
	var deadLetters []validation
	for i, text := range badLines {
		if answer := ask(text, ""); answer.DeadLetter == nil {
			t.Errorf("%.200q is not dead-lettered: %s", text, answer.Body)
		} else if result[i].Line != i+1 || result[i].OK || result[i].Reason != answer.DeadLetter.Error ||
			result[i].Detail != answer.DeadLetter.Detail {
			t.Errorf("%.200q: validate prints %+v, the worker %+v", text, result[i], *answer.DeadLetter)
		}
		deadLetters = append(deadLetters, result[i])
	}
	good := whole("booking.requested", ``, requestData(``))
	for _, subject := range []string{"in.booking.requested.hut", "in.booking.cancelled.loft",
		"in.booking.requested.loft.more", "in.booking"} {
		subject = namespace + "." + subject
		result := validateText(t, good+"\n"+`{}`, exitDeadLettered, "--namespace", namespace, "--subject", subject)
		for i, text := range []string{good, `{}`} {
			if answer := ask(text, subject); answer.DeadLetter == nil || result[i].Reason != answer.DeadLetter.Error ||
				result[i].Detail != answer.DeadLetter.Detail {
				t.Errorf("%q on %s: validate prints %+v, the worker %s", text, subject, result[i], answer.Body)
			}
			deadLetters = append(deadLetters, result[i])
		}
		if result[0].Reason != events.ReasonSubjectMismatch {
			t.Errorf("%s: %+v", subject, result[0])
		}
	}
	publisher(t, "validate", "-f", fileOf(t, good), "--namespace", namespace, "--subject",
		namespace+".in.booking.requested.loft").want(t, exitOK, "1: ok")

	// The reason and detail of the stored dead letters.
	js := migrated(t, namespace)
	dlq, err := js.OrderedConsumer(t.Context(), p.namespace().DLQStream(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range deadLetters {
		m, err := dlq.Next(jetstream.FetchMaxWait(time.Minute))
		if err != nil {
			t.Fatalf("dead letter %d: %v", i, err)
		}
		if reason, detail := m.Headers().Get("Holdfast-Dlq-Reason"), m.Headers().Get("Holdfast-Dlq-Detail"); reason != want.Reason || detail != want.Detail {
			t.Errorf("dead letter %d: %s: %s, validate prints %+v", i, reason, detail, want)
		}
	}

	for text, want := range goodLines {
		if want == "" {
			continue
		}
		if answer := ask(text, ""); answer.DeadLetter != nil {
			t.Errorf("%s: %+v", text, answer.DeadLetter)
		}
	}
}

// TestValidate_Output_NeedsNoServer runs without any server or endpoints file.
func TestValidate_Output_NeedsNoServer(t *testing.T) {
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
	// Errors of publisher itself: lines that are almost in the short form.
	for text, want := range map[string]string{
		`{"event":"booking.requested","data":{},"id":"1"}`: "malformed: id: unknown member, the short form of an event has event and data",
		`{"event":5,"data":{}}`:                            "malformed: event: must be a string, found a number",
		`{"event":null}`:                                   "malformed: event: must be a string, found null",
		`{"event":"x","\u001b[2J":1}`:                      `malformed: \x1b[2J: unknown member, the short form of an event has event and data`,
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
	if list := validateText(t, file, exitDeadLettered); len(list) != 3 ||
		list[1] != (validation{Line: 4, Reason: "malformed", Detail: "body: not one JSON text in UTF-8, at byte 1"}) {
		t.Errorf("%+v", list)
	}
	if list := validateText(t, "\n\n", exitOK); list == nil || len(list) != 0 {
		t.Errorf("results for an empty file: %+v", list)
	}
	if r := publisher(t, "validate", "-f", fileOf(t, file), "-o", "ndjson").want(t, exitDeadLettered); strings.Count(r.out,
		"\n") != 3 || !strings.HasPrefix(r.out, `{"line":1,"ok":true,`) {
		t.Errorf("got\n%s", r.out)
	}
	publisher(t, "validate", "-f", "nowhere.json").want(t, exitUsage, "nowhere.json")
}

// TestValidate_EventOverSeveralLines_IsOne reads an event over several lines as one event, and lines whose first one
// is malformed as lines.
func TestValidate_EventOverSeveralLines_IsOne(t *testing.T) {
	t.Parallel()
	pretty := "{\n  \"event\": \"booking.requested\",\n  \"data\": {\n    \"request_key\": \"k\", \"user_id\": \"u\",\n    \"resource_id\": \"loft\",\n    \"quantity\": 1\n  }\n}\n"
	event := strings.Replace(whole("booking.requested", ``, requestData(``)), `{"specversion":"1.0",`,
		"{ \"specversion\": \"1.0\",\n\n", 1)
	line := short("booking.requested", requestData(``))
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"short": {pretty, "1: ok booking.requested loft\n"},
		"whole": {event, "1: ok booking.requested loft\n"},
		"later": {"\n\n" + pretty, "3: ok booking.requested loft\n"},
		"with a list of objects": {strings.Replace(pretty, "1\n", "1, \"metadata\": {\"cart\": [\n{\n\"sku\": 7}\n]}\n", 1),
			"1: ok booking.requested loft\n"},
		"with a list whose last element looks like an event": {
			strings.Replace(pretty, "1\n", "1, \"metadata\": {\"cart\": [\n7,\n{\"event\": \"wedding\"}\n]}\n", 1),
			"1: ok booking.requested loft\n"},
		"a list of events": {"[\n" + line + ",\n" + line + "\n]", "1: malformed: body: must be a JSON object, found a list\n"},
		"an object on a line of its own": {strings.Replace(pretty, "\"data\": {", "\"data\":\n{", 1),
			"1: ok booking.requested loft\n"},
		"an object in the second line": {strings.Replace(line, "\"data\":", "\"data\":\n", 1), "1: ok booking.requested loft\n"},
		"a comma too much": {strings.Replace(pretty, "1\n", "1,\n", 1),
			fmt.Sprintf("1: malformed: body: not one JSON text in UTF-8, at byte %d\n",
				strings.Index(pretty, "1\n")+len("1,\n  "))},
		"cut": {pretty[:60], "1: malformed: body: the JSON text ends too early\n"},
		"a broken line": {line[:20] + "\n" + line,
			"1: malformed: body: the JSON text ends too early\n2: ok booking.requested loft\n"},
		"a broken line and a blank one": {line[:20] + "\n\n" + line + "\n" + line,
			"1: malformed: body: the JSON text ends too early\n3: ok booking.requested loft\n4: ok booking.requested loft\n"},
		"a broken line and an indented one": {line[:20] + "\n  " + line,
			"1: malformed: body: the JSON text ends too early\n2: ok booking.requested loft\n"},
		"two broken lines": {line[:20] + "\nbroken\n" + line,
			"1: malformed: body: the JSON text ends too early\n2: malformed: body: not one JSON text in UTF-8, at byte 0\n" +
				"3: ok booking.requested loft\n"},
		"only broken": {line[:20], "1: malformed: body: the JSON text ends too early\n"},
		"large": {strings.Replace(pretty, "\n}", strings.Repeat("\n", events.BodyMax)+"}", 1),
			"1: ok booking.requested loft\n"},
		"large event": {strings.Replace(event, "\n\n", strings.Repeat("\n", events.BodyMax), 1),
			"1: too_large: the body is larger than 64 KiB\n"},
		"huge": {strings.Replace(event, "\n\n", "\n"+strings.Repeat(" ", 10*lineMax), 1),
			"1: malformed: body: the JSON text ends too early\n2: too_large: the line is longer than 128 KiB\n"},
	} {
		for _, ending := range []string{"\n", "\r\n"} {
			text := strings.ReplaceAll(c.text, "\n", ending)
			r := runWith(t.Context(), strings.NewReader(text), "validate", "-f", "-")
			if ending == "\n" && r.out != c.want || strings.Count(r.out, "\n") != strings.Count(c.want, "\n") {
				t.Errorf("%s: got %s%s, want %s", name, r.out, r.errOut, c.want)
			}
		}
	}
	// The offset counts the line ends of the file.
	r := runWith(t.Context(), strings.NewReader(strings.ReplaceAll("{\n\"a\":1,\n\n}", "\n", "\r\n")), "validate", "-f",
		"-")
	if want := fmt.Sprintf("1: malformed: body: not one JSON text in UTF-8, at byte %d\n",
		len("{\r\n\"a\":1,\r\n\r\n")); r.out != want {
		t.Errorf("got %s, want %s", r.out, want)
	}
}
