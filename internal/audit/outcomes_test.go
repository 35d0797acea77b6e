package audit

import "testing"

// TestAddAnswer_AfterItsRow_IsOneAnswer: the outcomes that are published while Postgres is read come after its rows.
func TestAddAnswer_AfterItsRow_IsOneAnswer(t *testing.T) {
	h := &hold{}
	paid := decision{confirmed: true, at: 5}
	h.answerTo("p").row = &paid
	h.addAnswer(7, "p", paid)
	h.addAnswer(8, "p", paid) // a repeat
	if a := h.answerTo("p"); len(h.answers) != 1 || a.decision != paid || a.outcome != 7 || a.another != 0 {
		t.Errorf("answers %+v, want one, published in sequence 7", h.answers)
	}
	h.addAnswer(9, "p", decision{reason: "expired"})
	if a := h.answerTo("p"); a.another != 9 {
		t.Errorf("answer %+v, want another one in sequence 9", a)
	}
}
