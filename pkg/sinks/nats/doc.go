// Package nats delivers changes to a NATS JetStream stream.
//
// # Order and duplicates
//
// A stream that takes batches, and has no other writer, gets ordered batches (ordered.go, batch.go): one lane, thousands of
// messages on their way, and no message IDs, since the server says how much of a batch in doubt is stored. Any other stream
// gets messages one by one with the change ID as Nats-Msg-Id (byid.go): those of one object each when the one before is
// acknowledged. What is in doubt is then sent again, and the stream drops the copy within its duplicates window. Either way
// nothing is lost, repeated or reordered while a process lives. // I3
//
// There is one lane, until a subject turns out to be one that may not be published to (lanes.go).
//
// In mode kv the stream is the one behind a key-value bucket, and a deleted object becomes the purge marker of its key. In
// mode core there is no stream: a batch counts when the server has read it, and nobody says whether anyone listens.
//
// # Taking over
//
// A sink that is fenced (fence.go) has put a message of a subject of its own, kubecdc.fence.STREAM.GROUP.SINK, into the
// stream, and so moved its end: batches of an older process are refused. It reads what is there (tail.go). The state of an
// exporter is kept in a stream of its own (package state).
//
// # Messages
//
// The subject comes from a template; values are escaped by [AppendToken] so that each is one token. The payload is one JSON
// object, as the format has it, or empty where it has none. Headers:
//
//	Kubecdc-Offset             in a batch: the offset in the journal, its epoch, the batch
//	Nats-Expected-Last-Sequence   on the first message of a batch: where the stream must end
//	Nats-Msg-Id                otherwise: what the stream drops a repetition by, the change ID
//	Nats-Expected-Stream       the configured stream; another stream that captures the subject refuses the message
//	Content-Type               application/cloudevents+json in the format cloudevents-structured; application/json in cloudevents
//
// In the format upsert, on messages without a payload, and in json and debezium where [Config.Headers] asks for them, also:
//
//	Content-Type               application/json (only where they are asked for)
//	Kubecdc-Id                 the change ID
//	Kubecdc-Type               type of the change: added, updated, deleted, snapshot, …
//	Kubecdc-Cluster            cluster name
//	Kubecdc-Resource           resource as kubectl writes it: pods, deployments.apps
//	Kubecdc-Key                key of the object: group/resource/namespace/name; group/resource// on control records
//	Kubecdc-Resource-Version   resourceVersion of the object
//	Kubecdc-Snapshot           ID of the snapshot that the change belongs to; absent where there is none
//
// In debezium and upsert:
//
//	Kubecdc-Change             where the payload is empty or not whole: the native object without bodies
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
// single server that loses power can lose acknowledged messages. Replicate the stream, or set sync_interval: always. A
// stream that went back is noticed when the next batch is refused, or by a sequence that it gives out twice: a LostError.
// A server that is parted from the other replicas believes for ten seconds and more that it leads, and may lack what another
// has acknowledged since. What it says of the stream's end, or of the fence, is not believed.
package nats
