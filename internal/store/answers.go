package store

import (
	"context"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
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
