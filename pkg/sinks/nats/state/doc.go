// Package state keeps the replicated state of exporters in a JetStream stream of its own: a log of segments that the owner
// appends to and rewrites in rounds. internal/state/FORMAT.md specifies entries and segments.
package state
