// Package bench measures Holdfast: how many holds a second, against what Redis alone can do with
// the least that a hold needs, on the same servers and in the same run.
//
// A machine is noisy and no two are alike, so what counts are ratios of two things that were
// measured right after one another; each is measured in several rounds, and the middle is told.
// The processor time of each process, for each event, is told beside it: it says where the time
// went, and moves less than the clock when something else runs on the machine. What asks shares
// the machine with what is asked, as it does in the ceilings that are compared with.
//
//	ceiling    the least that a hold needs, by one script for each, 64 in one round trip, on 4
//	           connections: what this Redis can do, and nothing around it
//	sales      events that wait in the inbound stream, from the moment in which the workers may
//	           take them until the last outcome is stored
//	baseline   the same events, decided as most teams do: night by night, a lock, a read and a
//	           write, one after the other
//	payments   holds that are paid, against the same transactions in Postgres alone
//	latency    requests that come at a steady rate, whether or not the answers are late: from the
//	           moment in which a request should have been published until its outcome is there
//	expiry     20,000 holds that lapse within a second among 500,000 keys with a TTL
//	growth     what a live hold costs, in time, memory and bytes on the wire, while there are more
//	           and more of them
//
// Each measurement checks what it has measured: that there are as many outcomes as events, each of
// the kind that is meant, and that no worker ended. One that fails the check is an error, no figure.
package bench
