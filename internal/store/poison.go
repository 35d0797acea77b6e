package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// poisonAnswer is the stored answer of an event that is poison.
type poisonAnswer struct {
	Poison string `json:"poison"` // the detail of its dead letter
}

// RecordPoison implements events.PoisonRegister.
func (s *Store) RecordPoison(ctx context.Context, id, resource, detail string) error {
	err := s.transact(ctx, func(tx pgx.Tx) error {
		return storeAnswerOnce(ctx, tx, id, resource, poisonAnswer{detail})
	})
	if err != nil {
		return fmt.Errorf("record that event %s is poison: %w", id, err)
	}
	return nil
}

// Poisoned implements events.PoisonRegister.
func (s *Store) Poisoned(ctx context.Context, ids []string) (details map[string]string, err error) {
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		answers, err := readStoredAnswers(ctx, conn, ids)
		details = make(map[string]string, len(answers))
		for id, text := range answers {
			var a poisonAnswer
			err = errors.Join(err, json.Unmarshal([]byte(text), &a))
			details[id] = a.Poison
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read which events are poison: %w", err)
	}
	return details, nil
}
