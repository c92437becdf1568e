// Package sinks is the contract of destinations: how changes are delivered and how delivery may fail. It holds no
// destination; each is a package of its own (kafka, nats, webhook, stdout) with one constructor, and test/sinktest checks
// that a sink keeps the contract.
//
// # Lanes
//
// A lane is an ordered channel of the destination: a Kafka topic-partition, a NATS stream, a file. All changes of one object
// share a lane, and at most one Publish per lane runs at a time. That is the whole ordering mechanism (I3): a sink keeps the
// order within one batch and never has to look across lanes.
//
// # Errors
//
// A sink does not retry for long and never drops a message. Publish returns how many messages, counted from the first, the
// destination has durably accepted, and an error about the next one. The caller keeps the messages and reacts to the error:
//
//	*RejectedError      the message can never be accepted: dead letter, continue with the next
//	*UnavailableError   the whole destination is unavailable: stop all lanes of this sink, try again later
//	*LostError          accepted messages are lost: go back to the position before them
//	*DeposedError       another process has claimed the destination: stop publishing for good
//	anything else       unknown: retry this lane with back-off, without end
//
// # Restarts
//
// Messages that were in flight when a process died are published again by the next one, under the same change IDs. A sink
// that can find out which of them its destination has is [Stateful] and publishes only the others.
package sinks
