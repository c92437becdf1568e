// Package nats delivers changes to a NATS JetStream stream or a key-value bucket. DESIGN.md describes its parts.
//
// # Order and duplicates
//
// A stream that takes batches and has no other writer gets ordered batches (batch_publisher.go): one lane, thousands of
// messages in flight, and no message IDs, because the server reports how much of a batch in doubt is stored. Any other
// stream gets single messages with the change ID as Nats-Msg-Id (id_publisher.go): messages of one object are sent one at a
// time, each after the previous one is acknowledged. A message in doubt is sent again, and the stream drops the copy within
// its duplicate window. Either way nothing is lost, repeated or reordered while a process lives. // I3
//
// All objects share one lane, until the server refuses a subject (lanes.go).
//
// In mode kv the stream is the one behind a key-value bucket, and a deleted object becomes the purge marker of its key. Each
// watermark replaces the one before it, under a key that no object can have; other control records are left out.
//
// # Failover
//
// A fenced sink (fence.go) has written a message with the subject kubecdc.fence.STREAM.GROUP.SINK to the stream, which moves
// the stream's end: the server refuses the batches of an older process. It then reads the lanes back from the stream
// (stored.go). The state of an exporter is kept in a stream of its own (package state).
//
// # Messages
//
// The subject comes from a template; [AppendToken] escapes each value to one token. The payload is one JSON object in the
// configured format, or empty where the format has none. Headers:
//
//	Kubecdc-Offset                in a batch: the offset in the journal, its epoch, the batch
//	Nats-Expected-Last-Sequence   on the first message of a batch: the last sequence that the stream must have
//	Nats-Msg-Id                   otherwise: the change ID, by which the stream recognises a copy
//	Nats-Expected-Stream          the configured stream; another stream that captures the subject refuses the message
//	Content-Type                  application/cloudevents+json in the format cloudevents-structured, application/json in
//	                              cloudevents
//
// In the format upsert, on messages without a payload, and in json and debezium with [Config.Headers], also:
//
//	Content-Type               application/json (only with Config.Headers)
//	Kubecdc-Id                 the change ID
//	Kubecdc-Type               type of the change: added, updated, deleted, snapshot, …
//	Kubecdc-Cluster            cluster name
//	Kubecdc-Resource           resource as kubectl writes it: pods, deployments.apps
//	Kubecdc-Key                key of the object: cluster/group/resource/namespace/name; cluster/group/resource// on control
//	                           records
//	Kubecdc-Resource-Version   resourceVersion of the object
//	Kubecdc-Snapshot           ID of the snapshot that the change belongs to; absent outside a snapshot
//
// In debezium and upsert:
//
//	Kubecdc-Change             if the payload is empty or truncated: the native object without bodies
//	KV-Operation               DEL, in upsert, on an empty payload; PURGE on a deleted object in mode kv, in every format
//
// In the format cloudevents also ce-NAME for each attribute, with percent-encoded values.
//
// # Connection
//
// Nothing is dialled before the first use. Then the connection is kept: it reconnects without a limit, buffers nothing while
// it is down (messages sent from a buffer would follow newer ones), and is replaced if the client library gives it up. The
// stream is looked up once and, if configured, created. A missing stream, a missing permission and a full stream are an
// UnavailableError with a remedy, one log line when it begins and one when it ends, never a crash.
//
// JetStream acknowledges a message before it syncs it to disk (server option sync_interval, two minutes by default): a
// single server that loses power can lose acknowledged messages. Replicate the stream, or set sync_interval: always. The
// sink detects a stream that went back when the next batch is refused, or by a sequence that the stream gives out twice, and
// returns a LostError. A server that is separated from the other replicas believes for ten seconds and more that it leads
// the stream, and may lack acknowledged messages: its reports about the end of the stream and about the fence are not
// trusted.
package nats
