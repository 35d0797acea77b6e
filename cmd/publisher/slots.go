package main

import "holdfast/internal/holds"

// slotFlags say which slots of a resource are meant: nights, or named slots, or neither.
type slotFlags struct {
	CheckIn  string   `and:"nights" xor:"slots" placeholder:"DATE" help:"First night, YYYY-MM-DD."`
	CheckOut string   `and:"nights" placeholder:"DATE" help:"Day of departure, the day after the last night."`
	Slot     []string `xor:"slots" placeholder:"SLOT" help:"Named slots, like seats: repeat it or separate them by commas. Without nights and slots the one slot stock is meant."`
}

// selection is what the flags say as events write it.
func (f slotFlags) selection() holds.SlotSelection {
	return holds.SlotSelection{CheckIn: f.CheckIn, CheckOut: f.CheckOut, Slots: f.Slot}
}
