// Package admin shows operators what the exporter does: Prometheus metrics, liveness, readiness and a status page, over
// one HTTP server with its own mux and its own registry.
//
// It knows no other package. A function gives it a [Snapshot], asked anew for every request; metrics, readiness and page
// all come from that one value, so their numbers agree. Only the publish latency, which no snapshot can hold, is pushed
// ([Server.ObservePublish]).
//
// The server has no authentication, changes nothing and shows no object, only names, counts and reasons.
package admin

//go:generate go test -run TestMetricsPageIsUpToDate . -update
