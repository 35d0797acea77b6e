package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// readStoredAnswers reads the stored answers of events, by event id.
func readStoredAnswers(ctx context.Context, from querier, causes []string) (map[string]string, error) {
	rows, _ := from.Query(ctx, query("answers_read"), causes) // ForEachRow returns its error
	answers := make(map[string]string)
	var cause, answer string
	_, err := pgx.ForEachRow(rows, []any{&cause, &answer}, func() error {
		answers[cause] = answer
		return nil
	})
	return answers, err
}

// storeAnswers stores the answers of events. It returns errRaced when another transaction has
// answered one of them.
func storeAnswers(ctx context.Context, tx pgx.Tx, causes, resources []string, answers []any) error {
	texts := make([]string, len(answers))
	for i, answer := range answers {
		text, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		texts[i] = string(text)
	}
	written, err := tx.Exec(ctx, query("answers_insert"), causes, resources, texts)
	if err == nil && int(written.RowsAffected()) != len(causes) {
		err = errRaced
	}
	return err
}

// storeAnswerOnce stores the answer of an event, unless one is stored.
func storeAnswerOnce(ctx context.Context, tx pgx.Tx, eventID, resource string, answer any) error {
	err := storeAnswers(ctx, tx, []string{eventID}, []string{resource}, []any{answer})
	if errors.Is(err, errRaced) {
		return nil
	}
	return err
}

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
