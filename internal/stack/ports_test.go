package stack

import (
	"net"
	"testing"
)

// TestQuietPorts_ServersNotStarted_AreDistinct asks for the ports of ten clusters before any server listens: by chance
// alone, two of them would have a port in common.
func TestQuietPorts_ServersNotStarted_AreDistinct(t *testing.T) {
	t.Parallel()
	seen := make(map[int]bool)
	for range 10 {
		ports, err := QuietPorts(40)
		must(t, err)
		for _, port := range ports {
			if seen[port] {
				t.Errorf("port %d twice", port)
			}
			seen[port] = true
		}
	}
}

// TestReservePort_AnotherHasReservedIt_IsRefused reserves a port as another process does.
func TestReservePort_AnotherHasReservedIt_IsRefused(t *testing.T) {
	t.Parallel()
	other, err := net.ListenPacket("udp4", Loopback(0))
	must(t, err)
	t.Cleanup(func() { must(t, other.Close()) })
	if reservePort(other.LocalAddr().(*net.UDPAddr).Port) {
		t.Error("the port was reserved twice")
	}
}
