// Command lanes measures what sinks deliver against the fastest client there is for the bus, on the same server in the same
// run: that of Kafka against franz-go, straight and with a network between that is slow, and that of NATS against nats.go's
// PublishAsync. Rates on shared machines differ from run to run; the ratio of neighbouring rounds is what counts.
package main
