// Package sinktest proves that a sink keeps the contract of package sinks. Every destination runs the same suite against
// the real thing: a broker, a server, a file.
//
// A destination is described by a [Harness]: how to open a sink on it, how to read back everything it holds, and, where
// that is possible, how to make it unreachable. [Run] then publishes through the sink as delivery would, also under
// cancelled contexts, restarts and outages, and compares what the destination holds with what was acknowledged.
//
// The suite publishes changes of one cluster, "sinktest", under UIDs that no other run uses, and ignores whatever else the
// destination holds. So one destination serves the whole suite, and many runs of it.
package sinktest
