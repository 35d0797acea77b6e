package events

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/invopop/jsonschema"

	"holdfast/internal/holds"
	"holdfast/internal/members"
)

// The parts of descriptions and patterns.
const (
	noControls   = `[^\x00-\x1f\x7f-\x9f]`
	timePattern  = `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$`
	datePattern  = `^[0-9]{4}-[0-9]{2}-[0-9]{2}$`
	uuidPattern  = `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`
	mediaToken   = `[!#$%&'*+.^_|~0-9A-Za-z-]`
	jsonMedia    = `^\s*` + mediaToken + `+/(` + mediaToken + `*\+)?[Jj][Ss][Oo][Nn]\s*(;[\s\S]*)?$`
	int64Min     = "-9223372036854775808"
	int64Max     = "9223372036854775807"
	redisClock   = "RFC 3339 in UTC with milliseconds, by Redis' clock."
	namePattern  = `^[!-~]{1,128}$`
	nameForm     = "1 to 128 printable ASCII characters without space."
	answeredElse = " What is well-formed but not in this range is answered with invalid_request."
)

var holdIDPattern = strings.TrimSuffix(holds.ResourcePattern.String(), "$") + `\.[0-9a-f]{32}$`

// memberOf returns the schema of a member of data by its name: a name means the same in all events.
// slotsMax bounds a list of slots in a request.
func memberOf(name string, slotsMax uint64) *jsonschema.Schema {
	text := func(pattern, description string) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "string", Pattern: pattern, Description: description}
	}
	integer := func(description string) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "integer", Minimum: int64Min, Maximum: int64Max, Description: description}
	}
	switch name {
	case "resource_id":
		return text(holds.ResourcePattern.String(), "Something bookable: a room type, a performance, a product.")
	case "hold_id":
		return text(holdIDPattern, "<resource_id>.<32 lowercase hex digits>")
	case "request_key":
		return text(namePattern, "The publisher's idempotency key for one booking request, scoped to the resource. "+nameForm)
	case "user_id":
		return text(namePattern, "Who holds it. "+nameForm)
	case "payment_id":
		return text(namePattern, "The same payment of the same hold gets the same answer, however often. "+nameForm)
	case "currency":
		return text(namePattern, nameForm)
	case "amount":
		return text(members.AmountPattern.String(), "A decimal number as text.")
	case "check_in":
		return &jsonschema.Schema{Type: "string", Format: "date", Pattern: datePattern, Description: "The first night, YYYY-MM-DD."}
	case "check_out":
		return &jsonschema.Schema{Type: "string", Format: "date", Pattern: datePattern, Description: "The day of departure, YYYY-MM-DD: the night before it is the last."}
	case "slots":
		least := uint64(1)
		return &jsonschema.Schema{
			Type: "array", MinItems: &least, MaxItems: &slotsMax, UniqueItems: true, Items: text(holds.SlotPattern.String(), ""),
			Description: "Named slots. Without nights and slots, the resource has the one slot `stock`.",
		}
	case "quantity":
		return integer(fmt.Sprintf("How many of each slot, 1 to %d.", holds.QuantityMax) + answeredElse)
	case "capacity":
		return integer("How many of each slot may be sold, 0 or more." + answeredElse)
	case "ttl_seconds":
		return integer("How long the hold lasts from now on, 1 to 3600 unless the worker is configured otherwise." + answeredElse)
	case "metadata":
		return &jsonschema.Schema{Type: "object", Description: "Repeated in every outcome. At most 4 KiB, counted as received."}
	case "reason":
		return &jsonschema.Schema{Type: "string", Description: "Why."}
	case "field":
		return &jsonschema.Schema{Type: "string", Description: "The member of the request that is wrong."}
	case "message":
		return &jsonschema.Schema{Type: "string", Description: "The reason in a sentence, for people."}
	case "unavailable":
		return stockList("The slots that are short.")
	case "replayed":
		return &jsonschema.Schema{Const: true, Description: "An earlier event had this request key: this is the answer to that event."}
	case "late":
		return &jsonschema.Schema{Const: true, Description: "The hold had expired, and its slots were still free."}
	case "refund_required":
		return &jsonschema.Schema{Const: true, Description: "The payment must be refunded."}
	case "retry_at":
		return &jsonschema.Schema{
			Description: "The earliest deadline after which a retry could succeed; null when there is none.",
			OneOf:       []*jsonschema.Schema{{Type: "string", Format: "date-time", Pattern: timePattern}, {Type: "null"}},
		}
	}
	moments := map[string]string{
		"created_at": "When the hold was created.", "expires_at": "The deadline of the hold.",
		"extended_at": "When the deadline was moved.", "released_at": "When the hold was released.",
		"restored_at":  "When the counts were restored.",
		"confirmed_at": "The moment of the claim: from then on the hold cannot expire.",
		"cancelled_at": "Read after the capacity was released.",
	}
	if meaning, isMoment := moments[name]; isMoment {
		return &jsonschema.Schema{Type: "string", Format: "date-time", Pattern: timePattern, Description: meaning + " " + redisClock}
	}
	panic("docs/schemas: what does the member " + name + " mean? Describe it in memberOf")
}

// stockList returns the schema of a list of slots with their counts.
func stockList(description string) *jsonschema.Schema {
	row := reflected(holds.SlotCounts{})
	for pair := row.Properties.Oldest(); pair != nil; pair = pair.Next() {
		pair.Value = &jsonschema.Schema{Type: "integer", Minimum: "0", Maximum: int64Max}
		if pair.Key == "slot" {
			pair.Value = &jsonschema.Schema{Type: "string", Pattern: holds.SlotPattern.String()}
		}
	}
	return &jsonschema.Schema{Type: "array", Items: row, Description: description}
}

// reflected returns the schema of a Go type as it is encoded in JSON, with members in their order.
func reflected(value any) *jsonschema.Schema {
	r := jsonschema.Reflector{
		Anonymous: true, DoNotReference: true, ExpandedStruct: true, AllowAdditionalProperties: true,
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			switch t {
			case reflect.TypeFor[jsontext.Value]():
				return &jsonschema.Schema{Type: "object"}
			case reflect.TypeFor[holds.Time](), reflect.TypeFor[holds.HoldID]():
				return &jsonschema.Schema{Type: "string"}
			}
			return nil
		},
	}
	s := r.Reflect(value)
	s.Version = ""
	return s
}
