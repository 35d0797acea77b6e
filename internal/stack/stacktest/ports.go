package stacktest

import "net"

// freePort returns a port on which no server listens at the moment.
func freePort() (string, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port, listener.Close()
}
