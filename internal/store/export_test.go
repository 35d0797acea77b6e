package store

import "time"

func init() { watchPing = 2 * time.Second }
