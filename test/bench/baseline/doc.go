// Package baseline is the exporter that most teams write, to be measured against: a dynamic informer for each resource,
// with handlers that put events into a channel, from which a worker marshals {type, object} by encoding/json and
// hands it to a kafka-go Writer.
//
// It is written to do well at that. The client's rate limit is out of the way. The channel is bounded. The writer asks
// all replicas to acknowledge, waits 10 ms for a batch instead of a second, is asynchronous so that the worker never
// waits for a round trip, keys by object, so that the order per object can hold, and compresses nothing, which costs
// least. It lacks the same things as such exporters: no journal, no position, no memory bound on what the informer holds
// (every object, as maps) or on what its listeners have queued. It is no straw man and no recommendation.
package baseline
