// Package connect turns the connection settings of both programs into options of the clients: URLs
// and the files that contain them, certificates and logins. It also describes how a connection is
// protected. No error contains a password.
package connect
