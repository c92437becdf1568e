// Package kafka delivers changes to Apache Kafka: in order, and without duplicates while the process lives, through lost
// answers, broken connections and moving leaders. DESIGN.md in this directory is the overview.
//
// A change is acknowledged when all in-sync replicas have it (acks=all). A batch is never retried in part, and at most five
// batches of a partition are in flight: so many a broker remembers to recognize a copy.
//
// # Lanes
//
// A lane is a topic-partition, named "topic/3of6": partition 3 of a topic that has 6, because objects move when that number
// changes. The topic follows from the configured template, the partition from the Java client's murmur2 hash of the key, and
// the key is [event.Change.Key]. Naming a lane sends no request: changes of a topic with unknown partitions, because it was
// not looked up, does not exist or may not be described, have a waiting lane, whose Publish looks the topic up. Lanes are
// replaced when nothing is under way through them; see [sinks.Repartitioner].
//
// # Records
//
// Key: cluster/group/resource/namespace/name. Timestamp: the time of sending, by which brokers expire records; none while
// the broker rejects ours (code 32) because the clocks differ. Value and headers by format:
//
//	json                     the native form; id, type, observedAt, content-type, cluster, and resource as kubectl writes
//	                         it ("deployments.apps"); snapshot, the ID of the snapshot that the change belongs to, and
//	                         listVersion, the version of the list that showed the object, if any
//	debezium                 the envelope of Debezium; headers as json
//	                         with a schema in them or in a registry, value and key are rows, and there are no control records
//	upsert                   the object; headers as json
//	cloudevents              the native form; content-type, and each attribute as ce_ and its name
//	cloudevents-structured   attributes and native form in one object; content-type only
//
// A value that does not exist in the format is null: control records in debezium, and control records and deletes in upsert.
// The header change then holds the native form without bodies. With the option tombstones, each delete in the format
// debezium is two records, the second with the same key and headers and no value. They are one message to the caller: in one
// batch, acknowledged and rejected together. The broker counts records, the caller messages.
//
// # Errors
//
// The meaning of the answer to a produce request, by Kafka's error code:
//
//	0, 46                        written, now or by an earlier attempt: acknowledged
//	10, 18                       too large: the batch is halved; a single record is a RejectedError with TooLarge
//	87                           it contains an invalid record: halved; a single record is a RejectedError
//	2                            corrupt on arrival: the same bytes, three times in all; then as 87
//	32                           the same records without a timestamp, as every batch of the lane for a minute
//	43, 76                       the same records with the next codec, if none is configured; else an error of the lane
//	45, 59                       our numbers are unknown to the broker. If the partition has lost what it had acknowledged, that
//	                             is a LostError; else new epoch, numbered from 0; twice in a row, then back-off
//	47, 90                       a newer epoch exists: new producer ID, numbered from 0; likewise. A DeposedError of a sink that
//	                             was fenced
//	29                           no right to this topic: an error of the lane
//	31, 33, 34, 53, 58           no right to write, or not authenticated: UnavailableError, all lanes of the sink wait
//	3, 5, 6, 7, 13, 19, 20, 56,  undecided: query the leader of the partition. Another broker: the same bytes to it at once.
//	every other code, and every  A first failure of the network: the same bytes at once, because idle connections are often
//	failure of the network       dead. Otherwise the error goes to the caller; the next call sends the same bytes
//
// The leaders of many topics are queried in one request. A broker that does not answer is unreachable for all lanes:
// Publish fails at once until a probe, two a second, succeeds; other brokers are not affected. When no broker answers at
// all, that is an UnavailableError. An unknown topic is created where that is configured; otherwise its changes wait, with
// an ordinary error, and other topics go on.
//
// # Quotas
//
// A broker that throttles us answers at once, with a throttle time, and reads nothing from that connection until it is over
// (KIP-219). No request is sent to that broker meanwhile; a Publish waits, and fails only when its ctx ends.
package kafka
