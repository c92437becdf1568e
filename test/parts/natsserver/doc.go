// Package natsserver runs real NATS servers with JetStream for tests: each a process of its own on the loopback
// interface, with file storage, alone or as a cluster.
//
// A server keeps its ports and its store over Stop, Kill and Restart, so that a test can show what an outage does. The
// package publishes and reads nothing: tests do so with the client that they test.
package natsserver
