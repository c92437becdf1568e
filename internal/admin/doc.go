// Package admin shows operators what the exporter does: Prometheus metrics, liveness, readiness and a status page, over
// one HTTP server with its own mux and its own registry.
//
// It knows no other package. A function returns a [Snapshot] for every request; metrics, readiness and page all
// come from that one value, so their numbers agree. Values that no snapshot can hold are pushed: latencies
// ([Server.ObservePublish]) and the facts of changes ([Server.ObserveChange]).
//
// # Viewers
//
// Every two seconds one snapshot becomes a frame, which all viewers of the page share: rates, and each view's HTML, written
// once. The facts of the newest changes are kept in a ring. Each viewer reads both from where it is, in its own goroutine,
// so a slow viewer misses changes and delays no other; a viewer that reads nothing is disconnected.
//
// The server has no authentication, changes nothing and shows no value of an object, only names, facts of changes, counts
// and reasons. Timelines are the exception: they show values, to clients of this machine with a password.
package admin

//go:generate go test -run TestMetricsPageIsUpToDate . -update
