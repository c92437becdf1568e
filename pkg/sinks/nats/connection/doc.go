// Package connection is one connection to NATS over its client library: dialled in the background, kept for ever, with one
// inbox in which every answer finds the call that waits for it, and with errors that say what a person can do.
package connection
