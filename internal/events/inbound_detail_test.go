package events

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// secret is part of every value below. No detail may contain it.
const secret = "s3cret\u00e9"

// secretValues are values that no member of any event may have, at least one of each kind.
var secretValues = []string{
	`"` + secret + `"`, `"` + strings.Repeat(secret, 30) + `"`, `{"` + secret + `":"` + secret + `"}`,
	`["` + secret + `"]`, `["` + secret + `","` + secret + `"]`, `1.5`, `99999999999999999999`, `null`, `true`,
}

// TestDetail_BadMember_NamesNoValue sets each member of each event to values that it may not have.
func TestDetail_BadMember_NamesNoValue(t *testing.T) {
	t.Parallel()
	refused := make(map[string]bool)
	for event := range decoders {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(dataOf[event].data)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.Anonymous || name == "" {
				continue
			}
			for _, value := range secretValues {
				all := map[string]string{
					"request_key": `"k"`, "user_id": `"u"`, "resource_id": `"room"`, "quantity": `1`, "payment_id": `"p"`,
					"hold_id": `"room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"`, "ttl_seconds": `1`, "capacity": `1`,
				}
				if event == BookingCancelled && name != "hold_id" {
					delete(all, "hold_id")
				} else if event == BookingCancelled {
					delete(all, "request_key")
				}
				if name == "check_out" {
					all["check_in"] = `"2027-05-01"`
				}
				all[name] = value
				var members []string
				for member, text := range all {
					members = append(members, fmt.Sprintf("%q:%s", member, text))
				}
				body := envelopeOf(event, "e1", "{"+strings.Join(members, ",")+"}")
				_, err := DecodeEvent(nil, []byte(body), storedAt)
				if err == nil {
					continue // allowed in free text
				}
				refused[event+" "+name] = true
				if strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "data."+name+": ") || !strings.Contains(err.Error(), "found ") {
					t.Errorf("%s with %s %s: %v", event, name, value, err)
				}
			}
		}
	}
	if len(refused) < 20 {
		t.Errorf("only %d members refuse values: %v", len(refused), refused)
	}
}

// TestDetail_BadAttribute_NamesNoValue sets attributes and headers to values that they may not
// have.
func TestDetail_BadAttribute_NamesNoValue(t *testing.T) {
	t.Parallel()
	good := envelopeOf(BookingRequested, "e1", `{"request_key":"k","user_id":"u","resource_id":"room","quantity":1}`)
	for _, c := range []struct {
		header nats.Header
		body   string
	}{
		{nil, strings.Replace(good, `"1.0"`, `"s3cret"`, 1)},
		{nil, strings.Replace(good, Type(BookingRequested), "s3cret", 1)},
		{nil, strings.Replace(good, Type(BookingRequested), Type("s3cret"), 1)},
		{nil, strings.Replace(good, Type(BookingRequested), Type(BookingRequested)+".s3cret", 1)},
		{nil, strings.Replace(good, `"e1"`, `"s3cret\u0000"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","ext":{"s3cret":1}`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","time":"s3cret"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","dataschema":"<s3cret>"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","datacontenttype":"s3cret"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","datacontenttype":"text/s3cret"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1",s3cret`, 1)},
		{nil, `{"user_id":"s3cret"}`},
		{nil, `"s3cret"`},
		{nats.Header{"Content-Type": {"s3cret"}}, good},
		{nats.Header{"Content-Type": {"text/s3cret"}}, good},
		{nats.Header{"Content-Type": {"application/s3cret+json"}}, good},
		{nats.Header{"Content-Type": {"application/json; charset=s3cret"}}, good},
		{nats.Header{"Ce-Id": {"s3cret"}, "ce-id": {"s3cret"}}, "{}"},
		{nats.Header{"ce-id": {"%s3cret"}}, "{}"},
		{nats.Header{"ce-id": {"s3cret"}}, "{}"},
	} {
		_, err := DecodeEvent(c.header, []byte(c.body), storedAt)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v %s: %v", c.header, c.body, err)
		}
	}
}
