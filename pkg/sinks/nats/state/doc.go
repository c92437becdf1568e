// Package state keeps the replicated state of exporters in a JetStream stream of its own: a log of segments that the owner
// appends to and rewrites in rounds. docs/nats.md specifies the stream and the segments, docs/state-format.md the entries.
package state
