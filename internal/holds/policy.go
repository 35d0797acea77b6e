package holds

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Policy is what may be asked for, and for how long things last.
type Policy struct {
	HoldTTL         time.Duration // of a request that names none
	HoldTTLMax      time.Duration // longest ttl of a request
	HoldLifetimeMax time.Duration // longest life of a hold, extensions included
	PaymentWindow   time.Duration // what a hold has at least when its payment was started
	LatePayment     LatePayment   // what becomes of a payment for a hold that has lapsed
	HoldsPerUser    int           // live holds of one user on one resource
	NightsMax       int           // nights in one request
	HorizonDays     int           // days ahead that can be asked for
	RequestKeyTTL   time.Duration // how long answers and ended holds are remembered
	LockWait        time.Duration // how long a group waits for its lock; each worker has its own, it changes no answer
}

// LatePayment is what becomes of a payment for a hold that has lapsed.
type LatePayment string

// A late payment is rejected, or takes the slots of its hold again if they are free.
const (
	LateRejected       LatePayment = "reject"
	LateAcceptedIfFree LatePayment = "accept_if_free"
)

// setting is a setting of a policy that changes answers, by the name of its flag.
type setting struct {
	name string
	at   any // *time.Duration, *int or *LatePayment
}

func (p *Policy) settings() []setting {
	return []setting{
		{"hold-ttl", &p.HoldTTL},
		{"hold-ttl-max", &p.HoldTTLMax},
		{"hold-lifetime-max", &p.HoldLifetimeMax},
		{"payment-window", &p.PaymentWindow},
		{"late-payment", &p.LatePayment},
		{"holds-per-user", &p.HoldsPerUser},
		{"nights-max", &p.NightsMax},
		{"horizon", &p.HorizonDays},
		{"request-key-ttl", &p.RequestKeyTTL},
	}
}

// Settings returns the settings that change answers, as text, by the names of their flags.
func (p Policy) Settings() map[string]string {
	texts := make(map[string]string)
	for _, s := range p.settings() {
		switch at := s.at.(type) {
		case *time.Duration:
			texts[s.name] = at.String()
		case *int:
			texts[s.name] = strconv.Itoa(*at)
		case *LatePayment:
			texts[s.name] = string(*at)
		}
	}
	return texts
}

// ParsePolicy is Settings the other way round. It ignores settings that it does not know; one that is
// missing is an error. LockWait is 0.
func ParsePolicy(texts map[string]string) (p Policy, err error) {
	for _, s := range p.settings() {
		text, found := texts[s.name]
		if !found {
			return Policy{}, fmt.Errorf("stored policy: %s is missing", s.name)
		}
		switch at := s.at.(type) {
		case *time.Duration:
			*at, err = time.ParseDuration(text)
		case *int:
			*at, err = strconv.Atoi(text)
		case *LatePayment:
			*at = LatePayment(text)
		}
		if err != nil {
			return Policy{}, fmt.Errorf("stored policy: %s: %w", s.name, err)
		}
	}
	return p, nil
}

// PolicyDelay is after how long a policy that was stored comes into force. Until then each worker that
// publishes outcomes knows it: one that has not read the stored policies for termValidity publishes
// nothing. The clocks of NATS and Postgres may be apart by the rest.
const PolicyDelay = 5 * time.Second

// StoredPolicy is a policy with the time from which it is in force, by Postgres' clock.
type StoredPolicy struct {
	Since time.Time
	Policy
}

// Policies are all stored policies, in the order of Since; the first is also that of before. A request
// is validated by the policy that was in force when JetStream stored its event. So each delivery
// to each worker has the same result, although invalid_request is not remembered.
type Policies []StoredPolicy

// At returns the policy in force at a time.
func (p Policies) At(t time.Time) Policy {
	for i := len(p) - 1; i > 0; i-- {
		if !t.Before(p[i].Since) {
			return p[i].Policy
		}
	}
	return p[0].Policy
}

// Version names the latest policy, "" = none is stored.
func (p Policies) Version() string {
	if len(p) == 0 {
		return ""
	}
	return strconv.FormatInt(p[len(p)-1].Since.UnixMicro(), 10)
}

// Mismatch says in which settings the latest stored policy differs from a worker's own, "" = in none.
func (p Policies) Mismatch(own Policy) string {
	if len(p) == 0 {
		return ""
	}
	stored, ours := p[len(p)-1].Settings(), own.Settings()
	var differences []string
	for _, s := range own.settings() {
		if stored[s.name] != ours[s.name] {
			differences = append(differences, fmt.Sprintf("%s: %s here, %s stored", s.name, ours[s.name], stored[s.name]))
		}
	}
	return strings.Join(differences, "; ")
}

// ReplayWindow is for how long before now an outcome can matter: the longest life of a hold, and how long it
// is remembered after its end, of the policies under which something was decided that still matters.
// What clocks may differ by is added.
func (p Policies) ReplayWindow(now time.Time) time.Duration {
	const clocks = 10 * time.Minute
	over := func(i int) time.Duration { // for how long a policy has not been in force
		if i+1 == len(p) {
			return 0
		}
		return now.Sub(p[i+1].Since)
	}
	var life, answerTTL time.Duration
	for i, one := range p {
		if over(i) < one.HoldLifetimeMax+one.RequestKeyTTL+clocks {
			answerTTL = max(answerTTL, one.RequestKeyTTL)
		}
	}
	for i, one := range p {
		if over(i) < one.HoldLifetimeMax+answerTTL+clocks {
			life = max(life, one.HoldLifetimeMax)
		}
	}
	return life + answerTTL + clocks
}
