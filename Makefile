# For habit; each line is what README.md says.
.PHONY: dev test race lint bench

dev:
	go run ./cmd/worker dev

test:
	go test ./...

race:
	go test -race ./...

lint:
	go vet ./...
	golangci-lint run ./...

# How late lapsed holds are restored, and how long servers take to start.
bench:
	go test ./internal/holds -run '^$$' -bench Expire -benchtime 1x
	go test ./internal/stack -run '^$$' -bench Start -benchtime 3x
