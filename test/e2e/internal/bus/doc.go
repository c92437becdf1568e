// Package bus reads what the exporter wrote to Kafka and to NATS, as a consumer sees it and in the order a consumer sees
// it. It judges nothing; see package oracle for that.
//
// A [Reader] is pulled: each Read goes on from where the last one ended up to the end that the bus has at that moment. No
// goroutine of this package reads on its own, so a test decides when it looks.
package bus
