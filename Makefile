# For habit; each line is what README.md says.
.PHONY: dev test race lint bench bench-quick bench-parts bench-locks robustness torture mutants

dev:
	go run ./cmd/worker dev

test:
	go test ./...

race:
	go test -race ./...

lint:
	go vet ./...
	golangci-lint run ./...

# Compare what a worker does with what its servers can do, and write docs/bench. It takes half an hour of
# a machine that does nothing else; bench-quick takes some minutes and only prints. Both exit with 3,
# which make calls an error, when a goal is missed.
bench: BENCH = --out docs/bench
bench-quick: BENCH = --quick
bench bench-quick:
	go build -o bin/ ./cmd/worker ./cmd/bench
	bin/bench $(BENCH)

# How late lapsed holds are restored, how long servers take to start, 10,000 dead letters, and an
# audit of 100,000 holds.
bench-parts:
	go test ./internal/holds -run '^$$' -bench Expire -benchtime 1x
	go test ./internal/stack -run '^$$' -bench Start -benchtime 3x
	go test ./cmd/publisher -run '^$$' -bench TenThousand -benchtime 1x
	go test ./internal/audit -run '^$$' -bench Audit -benchtime 1x

# Measures the cost and the overselling of each lock and writes the table in docs/locks.md. It takes
# some minutes on a machine without other load.
bench-locks:
	go test ./internal/locking -run '^TestCompare$$' -count 1 -timeout 40m -v -compare -compare.out $(CURDIR)/docs/locks.md

# What docs/faults.md tells of, for as long as FOR says, with three nodes of NATS. The same SEED has the
# same plan; STRATEGY is HOLDFAST_LOCK_STRATEGY of the workers.
FOR ?= 60m
SEED ?= 0
STRATEGY ?= range
robustness torture:
	go test ./internal/robustness -run '^TestRobustness$$' -count 1 -timeout 24h -v -robustness.for $(FOR) -robustness.seed $(SEED) -robustness.strategy $(STRATEGY) -robustness.report $(CURDIR)/robustness.json

# Our own code, broken on purpose: the table in docs/faults.md.
mutants:
	go test ./internal/mutants -run '^TestMutants_EachApplied_IsCaught$$' -count 1 -timeout 3h -v -mutants
