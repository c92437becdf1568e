// Package consumer contains only tests. They run random histories through pkg/deltas and rebuild the cluster from its output
// with pkg/consumer.
package consumer
