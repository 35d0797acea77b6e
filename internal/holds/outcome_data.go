package holds

import "github.com/go-json-experiment/json"

// OutcomeData is the data of an outcome: one of the types in outcomeTypes.
type OutcomeData interface {
	// Refusal returns the reason of an outcome that refuses, "" for any other.
	Refusal() string
	// Hold returns what the outcome says about a hold, nil when it is not about one.
	Hold() *HoldData
}

// outcomeTypes has the type of the data of each outbound event.
var outcomeTypes = map[string]func(text []byte) (OutcomeData, error){
	EventHoldCreated:          decodeData[HoldCreated],
	EventHoldRejected:         decodeData[HoldRejected],
	EventHoldExtended:         decodeData[HoldExtended],
	EventExtensionRejected:    decodeData[ExtensionRejected],
	EventHoldReleased:         decodeData[HoldReleased],
	EventReleaseRejected:      decodeData[ReleaseRejected],
	EventHoldExpired:          decodeData[HoldExpired],
	EventHoldConfirmed:        decodeData[HoldConfirmed],
	EventConfirmRejected:      decodeData[ConfirmRejected],
	EventReservationCancelled: decodeData[ReservationCancelled],
	EventCancelRejected:       decodeData[CancelRejected],
	EventInventoryUpdated:     decodeData[InventoryUpdated],
	EventInventoryRejected:    decodeData[InventoryRejected],
	EventBookingCancelled:     decodeData[BookingCancelled],
}

func decodeData[T OutcomeData](text []byte) (OutcomeData, error) {
	var data T
	err := json.Unmarshal(text, &data)
	return data, err
}

// DecodeOutcomeData decodes the data of an outbound event. known is false for an event that is not
// one of the Event constants.
func DecodeOutcomeData(event string, text []byte) (data OutcomeData, known bool, err error) {
	decode, known := outcomeTypes[event]
	if !known {
		return nil, false, nil
	}
	data, err = decode(text)
	return data, true, err
}

// Reason returns why the outcome refuses, "" when it refuses nothing.
func (o Outcome) Reason() string {
	if o.Data == nil {
		return ""
	}
	return o.Data.Refusal()
}

// Hold and Refusal implement OutcomeData for all data that has HoldData and refuses nothing.
func (d HoldData) Hold() *HoldData { return &d }
func (HoldData) Refusal() string   { return "" }

// Refusal returns the reason.
func (d HoldRejected) Refusal() string      { return d.Reason }
func (d ExtensionRejected) Refusal() string { return d.Reason }
func (d ReleaseRejected) Refusal() string   { return d.Reason }
func (d ConfirmRejected) Refusal() string   { return d.Reason }
func (d CancelRejected) Refusal() string    { return d.Reason }
func (d InventoryRejected) Refusal() string { return d.Reason }

// Hold and Refusal implement OutcomeData for data that is not about a hold.
func (InventoryRejected) Hold() *HoldData { return nil }
func (InventoryUpdated) Hold() *HoldData  { return nil }
func (BookingCancelled) Hold() *HoldData  { return nil }
func (InventoryUpdated) Refusal() string  { return "" }
func (BookingCancelled) Refusal() string  { return "" }
