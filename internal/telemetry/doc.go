// Package telemetry sends the exporter's own metrics and a few spans to a collector by OTLP, if the standard environment
// variables of OpenTelemetry ask for that. Otherwise it makes nothing: no goroutine, no connection, no buffer.
//
// The metrics are those of /metrics, read from the same registry. A span is recorded when an operation has ended: the start,
// a reload, the list of a resource, a failover. No change of an object makes one, so the stream does not depend on it.
//
// A collector that is away or slow delays nothing but the stop, by at most two seconds.
package telemetry
