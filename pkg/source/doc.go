// Package source finds the resources a configuration selects, watches them as raw bytes and goes on from a stored
// position after a restart. It feeds pkg/deltas and decides nothing about what changed.
//
//	rules ── discovery (polled, and soon after a trigger) ──▶ scopes: one resource, one selector, perhaps one namespace
//	                                  │ one runner each
//	                                  ▼
//	API server ── list/watch ──▶ resuming ListerWatcher ──▶ client-go Reflector ──▶ deltas.Queue ──▶ Append
//
// # Bytes
//
// Objects are never decoded. A NegotiatedSerializer of our own lets the stock REST client and Reflector carry
// *deltas.Object: identity, the newest managedFields entry, and the JSON as the API server wrote it without
// metadata.managedFields, found in one pass. What the API server wrote arrives: numbers keep their digits and fields
// that no Go type knows are kept.
//
// # History
//
// A stored position is watched on from, without a LIST. Only a positive loss of history makes a new list: 410 Gone, or a
// position that the API server has not reached yet (its etcd was restored from a backup). Every other failure, from a
// refused connection to garbage in the stream, is waited out and the watch goes on from the last resourceVersion seen.
// The queue is told which of these a list is, so that the stream itself says where history is missing (I5).
//
// # Limits
//
// This package changes nothing in the API server; the access reviews of Explain are answered and not kept. It reads what
// it selects and, beside that, discovery documents, the namespace kube-system, whose UID tells one cluster from another
// and is its name where none is configured, and, if it may and where rules select what may come and go, the metadata of
// definitions and APIServices: they say when to read discovery again, and nothing depends on them. A type that may not be
// read degrades alone and recovers by itself, unless its rule says otherwise.
package source
