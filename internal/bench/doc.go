// Package bench measures Holdfast: how many holds per second it decides, compared with a minimal
// script on the same Redis in the same run.
//
// # What it measures
//
//	ceiling    the least script of a hold, 64 calls in one round trip, on 4 connections: the most
//	           that this Redis can do
//	sales      requests that wait in the inbound stream: from the time when the workers may fetch
//	           them until the last outcome is stored
//	batches    the CPU time of a hold when 1, 8 or 64 requests arrive together
//	latency    requests at a steady rate, independent of the answers: from the time when a request
//	           was due until its outcome arrives; with locks and without
//	peers      other ways of placing holds, and Holdfast beside them, in a closed loop
//	payments   payments of holds, compared with the same transactions in Postgres alone
//	expiry     20,000 holds that expire within a second among 500,000 other keys with a TTL
//	overload   workers whose Redis or Postgres has a tenth of a processor
//	scale      1, 2 and 3 workers with as many shards of Redis, each with a tenth of a processor
//	console    a worker without live pages of its console, and with ten
//	idle       a worker without work, with a large inventory
//	growth     the cost of one more hold, in time, memory and bytes on the wire, with more and more
//	           live holds
//
// # How to read the figures
//
// Times depend on the machine and on its other load. The goals are therefore ratios of two
// measurements, one right after the other; each is repeated in several rounds, and the report has
// the median. The report also has the CPU time of each process per event: it shows where the time
// goes, and depends less on other load. The load generator runs on the same machine, in the ceilings
// too.
//
// # When a measurement fails
//
// Each measurement checks that there are as many outcomes as events, all of the expected kind, and
// that no worker has ended. Otherwise it returns an error instead of a figure.
package bench
