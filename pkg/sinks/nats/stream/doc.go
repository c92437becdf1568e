// Package stream is a client of one JetStream stream: its settings and state, its messages, and the records in it that name
// an owner. It maps the server's error codes to errors of sinks. It does not know changes.
package stream
