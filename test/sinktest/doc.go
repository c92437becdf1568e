// Package sinktest checks that a sink keeps the contract of package sinks. Every destination runs the same suite against the
// real thing: a broker, a server, a file.
//
// A [Harness] describes a destination: how to open a sink on it, how to read back everything it holds, and, where possible,
// how to make it unreachable. [Run] then publishes through the sink as delivery would, also under cancelled contexts,
// restarts and outages, and compares what the destination holds with what was acknowledged. [RunFailover] does the same for
// sinks that can be fenced.
//
// The suite publishes changes of one cluster, "sinktest", with UIDs that no other run uses, and ignores everything else in
// the destination. So one destination serves the whole suite, and many runs of it.
package sinktest
