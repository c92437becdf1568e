// Package nats delivers changes to a NATS JetStream stream.
//
// # Order and duplicates
//
// Objects hash to lanes, 512 unless configured. Each lane has one message in flight: the next one leaves only when the
// stream has acknowledged it, and every message carries the change ID as Nats-Msg-Id. Whatever is in doubt (no answer in
// time, a broken connection, an answer this package does not know) is an error; the caller publishes the same message
// again, and if the first one was stored after all, the stream says so within its duplicates window. So a lane can neither
// lose, repeat nor reorder, and no state has to be kept. Throughput comes from many lanes at once: the caller should allow
// as many concurrent Publish calls as [Sink.Concurrency] says. Goroutines that wait are cheap, and a weighted budget
// bounds the bytes in flight.
//
// In mode kv the stream is the one behind a key-value bucket, and a deleted object becomes the purge marker of its key. In
// mode core there is no stream: a batch counts when the server has read it, and nobody says whether anyone listens.
//
// # Messages
//
// The subject comes from a template; values are escaped by [AppendToken] so that each is one token. The payload is one JSON
// object, as the format has it, or empty where it has none. Headers:
//
//	Nats-Msg-Id                what the stream drops a repetition by: the change ID
//	Nats-Expected-Stream       the configured stream; another stream that captures the subject refuses the message
//	Nats-Expected-Last-Subject-Sequence   with exact: where the subject must end for the message to be taken
//	Content-Type               application/json; application/cloudevents+json in the format cloudevents-structured
//
// In the formats json, debezium and upsert also:
//
//	Kubecdc-Id                 the change ID
//	Kubecdc-Type               type of the change: added, updated, deleted, snapshot, …
//	Kubecdc-Cluster            cluster name
//	Kubecdc-Resource           resource as kubectl writes it: pods, deployments.apps
//	Kubecdc-Key                key of the object: group/resource/namespace/name; group/resource// on control records
//	Kubecdc-Resource-Version   resourceVersion of the object
//	Kubecdc-Snapshot           ID of the snapshot that the change belongs to; absent where there is none
//	Kubecdc-Change             in debezium and upsert, where the payload is empty or not whole: the native object without bodies
//	KV-Operation               DEL, in upsert, where the payload is empty; PURGE on a deleted object in mode kv, with every format
//
// In the format cloudevents also ce- and the name of each attribute, with values percent-encoded where they are not plain.
//
// # Connection
//
// Nothing is dialled before the first use. Then the connection is kept for ever: it reconnects without a limit, buffers
// nothing while it is down (a replayed buffer would overtake newer messages), and is replaced if the client library gives
// it up. The stream is looked up once and, where the configuration says so, created. A missing stream, a missing
// permission or a full stream is an UnavailableError with its remedy, one log line when it begins and one when it ends,
// never a crash.
//
// JetStream acknowledges a message before it is synced to disk (server option sync_interval, two minutes unless set): a
// single server that loses power can lose acknowledged messages. Replicate the stream, or set sync_interval: always. A stream
// that went back is noticed by a sequence that it gives out twice: a LostError, see loss.go.
package nats
