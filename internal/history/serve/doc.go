// Package serve answers as the API server of a cluster did at a moment of its history: a read-only Kubernetes API on
// loopback, for kubectl and every other client. Begin with server.go.
//
// The state at the moment is read once and held in memory, by type. What the history does not know is never shown: a list
// that it concerns is refused with its reason, and what else to know is a warning of the answer.
package serve
