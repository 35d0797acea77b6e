// Package telemetry keeps the metrics of a worker in memory and gives them to OpenTelemetry when
// they are collected. It also records traces of events, when that is configured.
//
// The metrics differ from the instruments of the SDK in two ways. Every series exists from the
// start, with zero, so that the first increase is visible and an alert on it can fire; the SDK
// exports a histogram only after its first value. And a recording is a few atomic operations,
// because the SDK finds the series of each value by its attributes, which several times per event
// is a measurable part of the event's cost.
package telemetry
