package stack_test

import (
	"testing"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// BenchmarkStart measures how long a start takes until all servers answer:
//
//	go test ./internal/stack -run '^$' -bench Start -benchtime 10x
func BenchmarkStart(b *testing.B) {
	b.Run("temporary", func(b *testing.B) { benchmarkStart(b, func() string { return "" }) })
	b.Run("durable_new", func(b *testing.B) { benchmarkStart(b, func() string { return stacktest.DataDir(b) }) })
	dir := stacktest.DataDir(b)
	b.Run("durable_again", func(b *testing.B) { benchmarkStart(b, func() string { return dir }) })
}

func benchmarkStart(b *testing.B, dir func() string) {
	var closing float64
	for b.Loop() {
		o := all
		o.Dir = dir()
		s, err := stack.Start(b.Context(), o)
		stacktest.Must(b, err)
		b.StopTimer()
		before := b.Elapsed()
		b.StartTimer()
		stacktest.Must(b, s.Close())
		b.StopTimer()
		closing += (b.Elapsed() - before).Seconds()
		b.StartTimer()
	}
	b.ReportMetric(closing/float64(b.N), "closing-s/op")
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)-closing/float64(b.N), "start-s/op")
	b.ReportMetric(0, "ns/op")
}
