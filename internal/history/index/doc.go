// Package index makes a history of what a sink of Kafka or NATS has stored, in a folder of this machine, and continues
// it: the rows are those that the sink history would have written, and up to where the topics were read stands in the
// same commit.
//
// Lanes are read side by side and put in the order in which their records were observed: see lane.go. The end of a
// snapshot says that what it lacks does not exist, so it waits until all lanes have been read past it: see frame.go.
// Records that are gone, because retention took them or the topic is another one, become a gap of every resource. Begin
// with index.go.
package index
