// Package follow reads a partition in order, from a position that its user stores together with what was read. So there is
// no consumer group, and nothing is committed to Kafka. The batch that was read last identifies a partition: that works with
// brokers of every version, which topic IDs do not.
package follow
