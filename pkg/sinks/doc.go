// Package sinks states what delivering means and how it may fail. It holds the contract only; each destination is a
// package of its own (kafka, nats, stdout) with one constructor, and sinktest proves that a sink keeps the contract.
//
// # Lanes
//
// A lane is an ordered channel of the destination: a Kafka topic-partition, a NATS stream, a file.
// All changes of one object share a lane, and at most one Publish per lane runs at a time. That is the whole ordering
// mechanism (I3): a sink keeps the order of one batch and never has to look across lanes.
//
// # Failing
//
// A sink does not retry for long and never drops. It answers Publish with how many messages, counted from the first,
// the destination has durably accepted, and an error about the next one. The caller holds the messages and decides:
//
//	*RejectedError      this message can never be accepted: dead letter, go on with the next
//	*UnavailableError   the whole destination is away: stop all lanes of this sink, try again later
//	*LostError          what was accepted is gone: go back to where it is not
//	anything else       unknown: try this lane again with back-off, for ever
//
// # Restarting
//
// What was in flight when a process died is published again by the next one, under the same change ID. A sink that can
// tell what its destination has of it is [Stateful], and publishes only the rest.
package sinks
