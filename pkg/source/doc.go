// Package source discovers the resources that a configuration selects, watches them, and resumes from a stored position
// after a restart. It feeds pkg/deltas, which decides what changed.
//
//	rules ── discovery (polled) ──▶ scopes: one resource, one selector, perhaps one namespace
//	                                  │ one runner for each resource, one follower for each scope
//	                                  ▼
//	API server ── LIST in pages, watch ──▶ batches of events ──▶ deltas.Tracker ──▶ Append
//
// [selection] resolves the rules, [apiserver] sends the requests, [decode] reads the bytes. DESIGN.md describes the parts of
// this package.
//
// # History
//
// A scope with a stored position is watched from there, without a LIST. Only evidence of lost history causes a new list: 410
// Gone, or a position that the API server has not reached yet (its etcd was restored from a backup). After every other
// failure, from a refused connection to garbage in the stream, the watch resumes from the last resourceVersion read. Each
// list that is not a snapshot begins with a gap record, so that the stream shows where history is missing (I5).
//
// # Limits
//
// This package changes nothing in the API server. It reads the selected resources, and:
//   - discovery documents;
//   - the namespace kube-system: its UID identifies the cluster, and is the cluster's name if none is configured;
//   - whether the namespaces that rules name exist;
//   - with the right to do so, and if rules select types that may come and go, the metadata of CustomResourceDefinitions and
//     APIServices. They only cause an earlier discovery poll.
//
// A forbidden type degrades alone and recovers without help, unless its rule has onForbidden: fail.
package source
