// Package connection is one connection to NATS on top of its client library. It is dialled in the background and reconnects
// without a limit. One inbox receives all answers and passes each to the call that waits for it. Errors contain a remedy.
package connection
