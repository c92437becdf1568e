// Package nats delivers changes to a NATS JetStream stream or a key-value bucket. DESIGN.md describes its parts.
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
// it is down (messages sent from a buffer would follow newer ones), and is replaced if the client library gives it up. A
// missing stream, a missing permission and a full stream are an UnavailableError with a remedy.
//
// JetStream acknowledges a message before it syncs it to disk (server option sync_interval, two minutes by default): a
// single server that loses power can lose acknowledged messages, which ends in a LostError.
package nats
