# Shortcuts for the commands of README.md.
.PHONY: dev test race lint pictures bench bench-quick bench-parts bench-locks robustness mutants stats

dev:
	go run ./cmd/worker dev

test:
	go test ./...

race:
	go test -race ./...

lint:
	go vet ./...
	golangci-lint run ./...

# bench compares a worker with the limits of its servers and with its peers, and writes docs/bench. It takes
# forty minutes on a machine without other load. bench-quick takes four minutes and only prints. Both exit
# with 3 when a goal is missed, which make reports as an error.
bench: BENCH = --write docs/bench
bench-quick: BENCH = --quick
bench bench-quick:
	go build -o bin/ ./cmd/worker ./cmd/bench
	bin/bench $(BENCH)

# bench-parts measures how late expired holds are restored, the start of the servers, 10,000 dead letters,
# and an audit of 100,000 holds.
bench-parts:
	go test ./internal/holds -run '^$$' -bench Expire -benchtime 1x
	go test ./internal/stack -run '^$$' -bench Start -benchtime 3x
	go test ./cmd/publisher -run '^$$' -bench TenThousand -benchtime 1x
	go test ./internal/audit -run '^$$' -bench Audit -benchtime 1x

# bench-locks measures the cost and the overselling of each lock, and writes the table in docs/locks.md.
# It takes some minutes on a machine without other load.
bench-locks:
	go test ./internal/locking -run '^TestCompare$$' -count 1 -timeout 40m -v -compare -compare.out $(CURDIR)/docs/locks.md

# pictures puts a load on worker dev and writes docs/dashboard.png and the capture of worker top in
# docs/operating.md. It needs Prometheus (on Debian apt-get install prometheus) and takes five minutes.
pictures:
	go test ./docs -run '^TestPictures' -count 1 -timeout 20m -pictures

# robustness runs the suite of docs/faults.md for the time FOR, with three nodes of NATS. The same SEED
# has the same plan; STRATEGY is HOLDFAST_LOCK_STRATEGY of the workers. LAYOUT=cluster has a Redis Cluster
# and a pair of Postgres, LAYOUT=sentinel a Redis with a replica and three Sentinels.
FOR ?= 60m
SEED ?= 0
STRATEGY ?= range
LAYOUT ?= single
robustness:
	go test ./internal/robustness -run '^TestRobustness$$' -count 1 -timeout 24h -v \
		-robustness.for $(FOR) -robustness.seed $(SEED) -robustness.strategy $(STRATEGY) -robustness.layout $(LAYOUT) \
		-robustness.report $(CURDIR)/robustness.json

# mutants runs the test of each mutant in the table of docs/faults.md.
mutants:
	go test ./internal/mutants -run '^TestMutants_EachApplied_IsCaught$$' -count 1 -timeout 3h -v -parallel 8 -mutants

# stats prints lines by package, test files without a source file, and functions of more than 60 lines.
stats:
	go test ./internal/house -count 1 -v -stats
