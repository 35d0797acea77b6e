package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
)

// freePort returns a TCP port of 127.0.0.1 that is free at this moment.
func freePort() (int, error) { return tryPort(0) }

// tryPort returns the given TCP port of 127.0.0.1 if it is free, and any free port for 0.
func tryPort(port int) (int, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return port, nil
}

// QuietPorts returns free TCP ports of 127.0.0.1 outside the range from which the kernel assigns ports.
// Use them for servers that must keep their port over restarts, and for servers that cannot start on
// another port when the port is taken.
func QuietPorts(number int) (ports []int, err error) {
	const first, last, attempts = 20000, 30000, 1000
	for range attempts {
		if len(ports) == number {
			return ports, nil
		}
		port, err := tryPort(first + rand.IntN(last-first))
		if err == nil && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return nil, errors.New("no free ports")
}
