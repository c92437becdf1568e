// Package workload writes Kubernetes objects of several kinds at full speed: each is created, updated some times, and every
// second one deleted, by many clients at once.
//
// It keeps no record of what it did. The history is etcd's, see package oracle; the counters here are for tests
// that want to do something in the middle. A failed write is tried again until it is done or the context ends, because
// the API server may be away on purpose; a write that was done though its answer was lost counts as done.
package workload
