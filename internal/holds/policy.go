package holds

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Policy contains the limits and durations by which requests are decided.
type Policy struct {
	HoldTTL         time.Duration // TTL of a request without ttl_seconds
	HoldTTLMax      time.Duration // longest TTL of a request
	HoldLifetimeMax time.Duration // longest life of a hold, including extensions
	PaymentWindow   time.Duration // minimum time left after the payment of a hold was started
	LatePayment     LatePayment   // how to decide a payment for an expired hold
	HoldsPerUser    int           // maximum number of live holds of one user on one resource
	NightsMax       int           // maximum number of nights in one request
	HorizonDays     int           // maximum number of days from today to a requested night
	RequestKeyTTL   time.Duration // how long answers and ended holds are remembered

	// LockWait is the maximum wait of a group for its lock. It changes no answer, so each worker
	// uses its own value.
	LockWait time.Duration
}

// LatePayment says how to decide a payment for an expired hold.
type LatePayment string

// A late payment is rejected, or takes the slots of its hold again if they are free.
const (
	LateRejected       LatePayment = "reject"
	LateAcceptedIfFree LatePayment = "accept_if_free"
)

// setting is a setting of a policy that changes answers, with the name of its flag.
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

// Settings returns the settings that change answers as text, keyed by the names of their flags.
func (p Policy) Settings() map[string]string {
	texts := make(map[string]string)
	for _, s := range p.settings() {
		texts[s.name] = fmt.Sprint(reflect.ValueOf(s.at).Elem())
	}
	return texts
}

// ParsePolicy parses what Settings returns. It ignores unknown settings and returns an error for a
// missing one. LockWait is 0.
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

// PolicyDelay is the time between the storing of a policy and its start. By then every worker that
// publishes outcomes knows the policy, because a worker that has not read the stored policies for
// the validity of its epoch term publishes nothing. The rest of the delay allows for a difference
// between the clocks of NATS and Postgres.
const PolicyDelay = 5 * time.Second

// StoredPolicy is a policy with the time from which it is in force, by Postgres' clock.
type StoredPolicy struct {
	Since time.Time
	Policy
}

// Policies contains all stored policies in the order of Since. The first one also applies to all
// earlier times. A request is validated by the policy that was in force when JetStream stored its
// event. So every delivery to every worker has the same result, although invalid_request is not
// remembered.
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

// Version identifies the latest policy. It returns "" when no policy is stored.
func (p Policies) Version() string {
	if len(p) == 0 {
		return ""
	}
	return strconv.FormatInt(p[len(p)-1].Since.UnixMicro(), 10)
}

// Mismatch describes the settings in which the latest stored policy differs from own. It returns ""
// when they are equal or no policy is stored.
func (p Policies) Mismatch(own Policy) string {
	if len(p) == 0 {
		return ""
	}
	stored, ours := p[len(p)-1].Settings(), own.Settings()
	var differences []string
	for _, s := range own.settings() {
		if stored[s.name] != ours[s.name] {
			difference := fmt.Sprintf("%s: %s here, %s stored", s.name, ours[s.name], stored[s.name])
			differences = append(differences, difference)
		}
	}
	return strings.Join(differences, "; ")
}

// ReplayWindow returns how long before now an outcome can still be relevant. It is the sum of the
// longest life of a hold, the time for which an ended hold is remembered, and the largest assumed
// difference between clocks. It uses the maximum of all policies under which a still relevant
// outcome may have been decided.
func (p Policies) ReplayWindow(now time.Time) time.Duration {
	const clocks = 10 * time.Minute
	over := func(i int) time.Duration { // time since the end of a policy
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
