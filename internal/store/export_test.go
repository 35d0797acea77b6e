package store

import "time"

func init() { watchPing = 300 * time.Millisecond }
