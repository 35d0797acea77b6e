package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// freePort returns a TCP port of 127.0.0.1 that is free at this moment.
func freePort() (int, error) { return tryPort(0) }

// tryPort returns the given TCP port of 127.0.0.1 if it is free, and any free port for 0.
func tryPort(port int) (int, error) {
	l, err := net.Listen("tcp4", Loopback(port))
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return port, nil
}

// QuietPorts returns free TCP ports of 127.0.0.1 outside the range from which the kernel assigns ports. No other call
// returns one of them, in this process or in another, until this process ends: a server may start on its port late, or
// again. Use them for servers that must keep their port over restarts, and for servers that cannot start on another port
// when the port is taken.
func QuietPorts(number int) (ports []int, err error) {
	const first, last, attempts = 20000, 30000, 1000
	for range attempts {
		if len(ports) == number {
			return ports, nil
		}
		port := first + rand.IntN(last-first)
		if !reservePort(port) {
			continue
		}
		if _, err := tryPort(port); err == nil {
			ports = append(ports, port)
		}
	}
	return nil, errors.New("no free ports")
}

// reserved has the sockets of reservePort, which a finalizer would close otherwise.
var reserved struct {
	sync.Mutex
	sockets []net.PacketConn
}

// reservePort reserves a port for QuietPorts, unless that was done before. The sign for other processes is the UDP port of
// the same number: it takes nothing from the servers, which use TCP, and the kernel frees it when the process ends.
func reservePort(port int) bool {
	socket, err := net.ListenPacket("udp4", Loopback(port))
	if err != nil {
		return false
	}
	reserved.Lock()
	defer reserved.Unlock()
	reserved.sockets = append(reserved.sockets, socket)
	return true
}

// Loopback returns the address of a port of 127.0.0.1.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
