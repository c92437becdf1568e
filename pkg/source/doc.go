// Package source finds the resources that a configuration selects, watches them, and goes on from a stored position after
// a restart. It feeds pkg/deltas and decides nothing about what changed.
//
//	rules ── discovery (polled, and soon after a trigger) ──▶ scopes: one resource, one selector, perhaps one namespace
//	                                  │ one runner for each resource, one follower for each scope
//	                                  ▼
//	API server ── WatchList, LIST or watch ──▶ batches of events ──▶ deltas.Tracker ──▶ Append
//
// [selection] says what the rules select, [apiserver] sends the requests, [decode] reads the bytes.
//
// # History
//
// A stored position is watched on from, without a LIST. Only a positive loss of history makes a new list: 410 Gone, or a
// position that the API server has not reached yet (its etcd was restored from a backup). After every other failure, from a
// refused connection to garbage in the stream, the watch goes on from the last resourceVersion read. Each list that is not
// a snapshot begins with a gap record, so that the stream itself says where history is missing (I5).
//
// # Limits
//
// This package changes nothing in the API server. It reads what is selected and, beside that, discovery documents, the
// namespace kube-system, whose UID differs from cluster to cluster and is its name where none is configured, whether the
// namespaces exist that rules name, and, where it is allowed and rules select types that may come and go, the metadata of
// definitions and APIServices: they say when to read discovery again, and nothing depends on them. A type that must not be
// read degrades alone and recovers by itself, unless its rule says otherwise.
package source
