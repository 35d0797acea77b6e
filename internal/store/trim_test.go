package store_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/internal/stack/stacktest"
)

func TestDropAnswers_Old_DropsTheOldestFirst(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, `INSERT INTO event_answers (cause, resource_id, answer, decided_at)
		SELECT 'd' || days, 'room', '{}', now() - days * interval '1 day' FROM unnest(ARRAY[0, 29, 31, 60, 90]) AS days`)
	for _, want := range [][]string{{"d0", "d29", "d31"}, {"d0", "d29"}, {"d0", "d29"}} {
		if _, err := s.DropAnswers(t.Context(), 30*24*time.Hour, 2); err != nil {
			t.Fatal(err)
		}
		if left := s.column(t, `SELECT cause FROM event_answers ORDER BY decided_at DESC`); !slices.Equal(left, want) {
			t.Errorf("left %v, want %v", left, want)
		}
	}
}

func TestDropElapsedNights_NothingReserved_DropsThem(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, `INSERT INTO inventory (resource_id, slot, capacity, reserved) VALUES
		('room', '2001-02-03', 5, 0), ('room', '2001-02-04', 5, 1), ('hall', '2001-02-03', 0, 0), ('room', 'stock', 5, 0),
		('room', '2001-02-3', 5, 0), ('room', '2001', 5, 0), ('room', 'A-2001-02-03', 5, 0), ('room', '2999-02-03', 5, 0),
		('room', '0012-01-07', 5, 0), ('room', '2001-13-01', 5, 0), ('room', '2001-01-32', 5, 0)`)
	s.execute(t, `UPDATE inventory SET updated_at = '1990-01-01'`)
	s.execute(t, `INSERT INTO inventory (resource_id, slot, capacity, updated_at) VALUES
		('room', '1998-12-31', 5, now() - interval '398 days'), ('room', '1999-12-31', 5, now() - interval '402 days')`)
	s.execute(t, `INSERT INTO inventory (resource_id, slot, capacity)
		SELECT 'edge', to_char((now() AT TIME ZONE 'UTC') - days * interval '1 day', 'YYYY-MM-DD'), days FROM unnest(ARRAY[398, 402]) AS days`)
	s.execute(t, `UPDATE inventory SET updated_at = '1990-01-01' WHERE resource_id = 'edge'`)
	now := time.Now()
	for _, c := range []struct {
		worker time.Time
		want   int
	}{{now.AddDate(-30, 0, 0), 0}, {now.AddDate(30, 0, 0), 4}, {now, 0}} { // the clock that is behind counts
		if dropped, err := s.DropElapsedNights(t.Context(), c.worker, 400, 2); err != nil || dropped != c.want {
			t.Errorf("at %v: dropped %d, want %d: %v", c.worker, dropped, c.want, err)
		}
	}
	want := []string{"398 edge", "0 0012-01-07", "0 1998-12-31", "0 2001", "0 2001-01-32", "0 2001-02-04", "0 2001-02-3", "0 2001-13-01", "0 2999-02-03", "0 A-2001-02-03", "0 stock"}
	left := s.column(t, `SELECT CASE WHEN resource_id = 'edge' THEN capacity || ' edge' ELSE '0 ' || slot END FROM inventory
		ORDER BY resource_id, slot COLLATE "C"`)
	if !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}

// TestDropElapsedNights_SetMeanwhile_Stays removes the row of an old date while another session sets its capacity.
func TestDropElapsedNights_SetMeanwhile_Stays(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 5, "2020-01-01")
	s.execute(t, `UPDATE inventory SET updated_at = now() - interval '500 days'`)
	tx, err := s.conn.Begin(t.Context())
	stacktest.Must(t, err)
	var setter int
	stacktest.Must(t, tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&setter))
	_, err = tx.Exec(t.Context(), `UPDATE inventory SET capacity = 7, updated_at = now()`)
	stacktest.Must(t, err)
	var dropped int
	var removal sync.WaitGroup
	removal.Go(func() { dropped, err = s.DropElapsedNights(t.Context(), time.Now(), 400, 10) })
	stacktest.Eventually(t, "the removal to wait", func() bool {
		var waiting int
		err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))`, setter).Scan(&waiting)
		return err == nil && waiting > 0
	})
	stacktest.Must(t, tx.Commit(t.Context()))
	if removal.Wait(); err != nil || dropped != 0 {
		t.Errorf("%d rows were removed that were set meanwhile, %v", dropped, err)
	}
}

// TestDropElapsedNights_CapacitySetBySQL_KeepsThem sets the capacity of one night as upstream may, which writes no other
// column.
func TestDropElapsedNights_CapacitySetBySQL_KeepsThem(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, `INSERT INTO inventory (resource_id, slot, capacity, updated_at) VALUES
		('room', '2001-02-03', 5, '2001-01-01'), ('room', '2001-02-04', 5, '2001-01-01');
		UPDATE inventory SET capacity = 6 WHERE slot = '2001-02-04'`)
	if _, err := s.DropElapsedNights(t.Context(), time.Now(), 400, 9); err != nil {
		t.Fatal(err)
	}
	if left := s.column(t, `SELECT slot FROM inventory`); !slices.Equal(left, []string{"2001-02-04"}) {
		t.Errorf("left %q", left)
	}
}
