package audit

import (
	"fmt"
	"slices"
	"strings"
)

// checkPayments compares the published answers to the payments of a hold with those that Postgres
// has, and with the reservation that was made.
func (r *resource) checkPayments(g *group, h *hold) (found []*Finding) {
	add := func(f *Finding) {
		if f != nil {
			found = append(found, f)
		}
	}
	payments, reservations := g.Namespace+".payments", g.Namespace+".reservations"
	made := h.reservation
	var paid []string
	var paidAt uint64
	removed := false // the reservation may be, see mayBeRemoved
	for i := range h.answers {
		a := &h.answers[i]
		if a.confirmed || a.row != nil && a.row.confirmed {
			paid, paidAt = append(paid, quoted(a.payment)), max(paidAt, a.outcome)
		}
		add(r.checkAnswer(g, h, a))
		switch {
		case g.mayBeRemoved(a):
			removed = true
			g.inconclusive[pastRemoved]++
		case a.row != nil && a.row.confirmed && (made == nil || made.payment != a.payment):
			add(r.onHold(PaymentWithoutReservation, h, reservations, a.outcome,
				"a reservation by payment "+quoted(a.payment), made.text(), g.onceCompared(a.outcome,
					"Refund the payment, or insert the reservation by hand if the capacity allows it. "+notSafe),
				"was paid by %s according to Postgres, and has %s.", quoted(a.payment), made.text()))
		}
	}
	if len(paid) > 1 {
		slices.Sort(paid)
		add(r.onHold(TwoAnswers, h, payments, paidAt, "one payment", strings.Join(paid, " and "),
			"Refund all payments except the one that the reservation names. "+notSafe,
			"was paid more than once: %s.", strings.Join(paid, " and ")))
	}
	if made != nil {
		found = append(found, r.checkReservation(g, h)...)
	} else if h.cancelled != 0 && h.cancelled <= g.snapshotSeq && !removed {
		add(r.onHold(CancellationDiffers, h, reservations, h.cancelled, "a cancelled reservation",
			"no reservation", g.onceCompared(h.cancelled, postgresCounts),
			"was published as a cancelled reservation, and Postgres has no reservation."))
	}
	return found
}

// mayBeRemoved reports whether an operator may have removed the reservation of a payment, as docs/storage.md allows. A
// repeat of the answer may have been published since.
func (g *group) mayBeRemoved(a *answer) bool {
	return a.row != nil && a.past && g.out.couldBeDropped(a.row.at, clockSkewMax)
}

// onceCompared returns the remedy of a difference between Postgres and an outcome. It is only right when workers have
// compared Postgres with the outcome: after a failover or a restore they put back what is missing.
func (g *group) onceCompared(outcome uint64, remedy string) string {
	if outcome <= g.comparedSeq {
		return remedy
	}
	g.inconclusive[notCompared]++
	return fmt.Sprintf("Workers have not compared Postgres with the outcomes after sequence %d of %s yet, as after a "+
		"failover or a restore. Start the workers, which put back what is missing. When they are ready, audit again. ",
		g.comparedSeq, g.out.name) + notSafe
}

const postgresCounts = "The answer in Postgres counts: inform the consumers that have received the other one. " + notSafe

// checkAnswer compares the published answer to a payment with the one that Postgres has.
func (r *resource) checkAnswer(g *group, h *hold, a *answer) *Finding {
	payments, name := g.Namespace+".payments", quoted(a.payment)
	switch {
	case a.another != 0:
		return r.onHold(TwoAnswers, h, g.out.name, a.another, a.text(), "another answer", postgresCounts,
			"has two answers to payment %s, in sequence %d of %s and in sequence %d.", name, a.outcome, g.out.name,
			a.another)
	case g.lacks(a):
		return r.onHold(AnswerUnrecorded, h, payments, a.outcome, a.text(), "nothing", g.onceCompared(a.outcome,
			"Find out whether Postgres has lost a transaction, for example by being restored from a backup, or another "+
				"database has these answers. To put back what fits, let the workers compare all outcomes: UPDATE "+
				g.Namespace+".commit_marker SET server = '', seq = 0, stream_created_at = NULL, and restart them. "+notSafe),
			"has the answer %s to payment %s, in sequence %d of %s, and Postgres has no answer to it.", a.text(),
			name, a.outcome, g.out.name)
	case a.row == nil:
	case a.outcome == 0:
		if g.out.couldBeDropped(a.row.at, clockSkewMax) || g.inProgress(r.name, h) {
			return nil
		}
		return r.onHold(AnswerUnannounced, h, g.out.name, h.last(), a.row.text(), "nothing",
			"Publish the payment again, which gets the same answer: "+r.payAgain(h, a.payment)+". "+notSafe,
			"has the answer %s to payment %s in Postgres since %s, and no outcome was published.", a.row.text(),
			name, moment(a.row.at))
	case a.confirmed != a.row.confirmed || a.reason != a.row.reason || a.late != a.row.late ||
		a.confirmed && a.at != a.row.at:
		return r.onHold(AnswerDiffers, h, payments, a.outcome, a.text(), a.row.text(), postgresCounts,
			"has the answer %s to payment %s, in sequence %d of %s; Postgres has %s.", a.text(), name, a.outcome,
			g.out.name, a.row.text())
	}
	return nil
}

const lowerFirst = "More is reserved than the reservations take. First lower it by worker audit --repair: workers may then put " +
	"this back within 10 s. Otherwise: "

// checkLostSales checks whether what is reserved of a slot may be lowered, as the remedy of a finding has it: not where Postgres
// lacks a sale of the slot, which would be sold again. But a sale in lost_commits has nothing granted, and is put back when
// there is room.
func (r *resource) checkLostSales(g *group, reserved *Finding) {
	slot, known := r.slotOf[reserved.difference.name]
	if !known {
		return
	}
	for _, h := range r.holds {
		if h.cancelled != 0 || h.reservation != nil && h.reservation.resource == r.name {
			continue
		}
		if h.set >= 0 && !slices.Contains(r.sets[h.set], slot) { // else it is older than the outbound stream: of any slots
			continue
		}
		if lost := g.lostSales[r.name+"."+h.id.String()]; lost != nil {
			if !strings.HasPrefix(lost.Remedy, lowerFirst) { // another of its slots
				lost.Remedy = lowerFirst + lost.Remedy
			}
			continue
		}
		if slices.ContainsFunc(h.answers, func(a answer) bool {
			return a.confirmed && g.lacks(&a) || a.row != nil && a.row.confirmed && !g.mayBeRemoved(&a)
		}) {
			reserved.Automatic = false
			reserved.Remedy = "Postgres lacks the sale of hold " + r.name + "." + h.id.String() + ", which takes this slot. Resolve that " +
				"finding first: lowering what is reserved would sell the slot again. Audit again when workers have put the sale back. " +
				notSafe
		}
	}
}

// lacks reports whether Postgres lacks an answer that was published before it was read.
func (g *group) lacks(a *answer) bool { return a.row == nil && a.outcome <= g.snapshotSeq }

func (r *resource) checkReservation(g *group, h *hold) (found []*Finding) {
	add := func(f *Finding) { found = append(found, f) }
	made, reservations := h.reservation, g.Namespace+".reservations"
	var paid answer
	if its := slices.IndexFunc(h.answers, func(a answer) bool { return a.payment == made.payment }); its >= 0 {
		paid = h.answers[its]
	}
	if paid.row == nil || !paid.row.confirmed {
		add(r.onHold(ReservationWithoutPayment, h, reservations, h.last(), "payment "+quoted(made.payment)+" confirmed",
			"no such answer", g.onceCompared(paid.outcome,
				"Ask the payment service for it; without one, cancel the reservation (publisher cancel-reservation). "+notSafe),
			"is a reservation by payment %s, and Postgres has no such confirmed payment.", quoted(made.payment)))
	}
	differs := func(what, reported, is string) {
		add(r.onHold(AnswerDiffers, h, reservations, h.last(), reported, is,
			"The reservation counts: inform its customer, or cancel it. "+notSafe,
			"was published with %s %s; its reservation has %s.", what, reported, is))
	}
	if made.resource != r.name { // no event can have changed it
		add(r.onHold(AnswerDiffers, h, reservations, h.last(), r.name, quoted(made.resource),
			"Correct its resource_id. "+notSafe,
			"is of resource %s; its reservation has %s.", r.name, quoted(made.resource)))
	}
	if h.set >= 0 {
		if slots := made.names(); slots != r.setNames[h.set] {
			differs("the slots", r.setNames[h.set], quoted(slots))
		}
		if made.quantity != h.quantity {
			differs("the quantity", fmt.Sprint(h.quantity), fmt.Sprint(made.quantity))
		}
	}
	switch reported := h.cancelled; {
	case reported != 0 && reported <= g.snapshotSeq && !made.cancelled:
		add(r.onHold(CancellationDiffers, h, reservations, reported, "cancelled", "confirmed",
			g.onceCompared(reported,
				"Cancel it: publisher cancel-reservation --hold-id "+r.name+"."+h.id.String()+". "+notSafe),
			"was published as a cancelled reservation, in sequence %d of %s; in Postgres it is confirmed.", reported,
			g.out.name))
	case reported != 0 && made.cancelled && made.cancelledAt != 0 && made.cancelledAt != h.cancelledAt:
		differs("the cancellation at", moment(h.cancelledAt), moment(made.cancelledAt))
	case reported == 0 && made.cancelled && !g.inProgress(r.name, h) &&
		!g.out.couldBeDropped(made.cancelledAt, clockSkewMax):
		add(r.onHold(CancellationDiffers, h, g.out.name, h.last(), "reservation.cancelled", "nothing",
			"Inform its customer. "+notSafe,
			"is a cancelled reservation in Postgres, and no outcome says so."))
	}
	return found
}

// text describes what an answer says.
func (d *decision) text() string {
	switch {
	case d.confirmed && d.late:
		return "confirmed late"
	case d.confirmed:
		return "confirmed"
	default:
		return "rejected, " + quoted(d.reason)
	}
}

// names returns the slots of a reservation, sorted and joined by commas.
func (r *reservation) names() string { return strings.Join(slices.Sorted(slices.Values(r.slots)), ",") }

// text describes a reservation, which may be nil.
func (r *reservation) text() string {
	if r == nil {
		return "no reservation"
	}
	return "a reservation by payment " + quoted(r.payment)
}
