// Package kafka runs real Apache Kafka brokers for tests, in KRaft mode and without containers: each a Java process of
// its own on the loopback interface that is broker and controller at once, alone or as a cluster.
//
// A broker keeps its ports and its data over Stop, Kill and Restart, so that a test can show what an outage does.
// Topics are never created by themselves: a test creates those that it needs, with the client that it tests. Java 17
// or later must be on PATH; the broker's classes come from package build.
package kafka
