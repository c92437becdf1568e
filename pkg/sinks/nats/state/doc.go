// Package state keeps the replicated state of exporters in a JetStream stream of its own; docs/state-format.md specifies it.
package state
