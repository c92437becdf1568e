// Package kafka delivers changes to Apache Kafka: in order, and without duplicates while the process lives, through lost
// answers, broken connections and moving leaders. DESIGN.md in this directory is the overview.
//
// It uses kafka-go for SASL and for the encoding of requests; neither its Writer, which duplicates and reorders when
// connections break, nor its Transport, which dedicates a connection to one request at a time (see package connection).
// Requests without a kafka-go type use those of franz-go's kmsg. A change is acknowledged when all in-sync replicas have it
// (acks=all). A batch is never retried in part, and at most five batches of a partition are in flight.
//
// # Lanes
//
// A lane is a topic-partition, named "topic/3of6": partition 3 of a topic that has 6. The topic follows from the configured
// template, the partition from the Java client's murmur2 hash of the key, and the key is [event.Change.Key]. All changes of
// one object are therefore in one partition, the one where Java producers put the key. The name contains the number of
// partitions because objects move when it changes. Naming a lane sends no request: changes of a topic with unknown
// partitions, because it was not looked up, does not exist or may not be described, have a waiting lane. Its Publish looks
// the topic up. A topic that has grown is noticed within half a minute. In both cases the lanes are replaced when nothing
// is under way through them; see [sinks.Repartitioner].
//
// # Idempotence
//
// Each lane numbers its records (KIP-98), under the producer ID of a transactional ID that all share. A batch is encoded
// once. After a network failure or a lost answer the same bytes with the same numbers are sent until there is an answer.
// The leader of the partition writes them once, and rejects them when they arrive late. Which messages are in such a batch
// outlives the call: the next Publish of the lane begins with them.
//
// A Publish with messages for more than one batch has up to five under way, all on one connection, on which a broker keeps
// their order; with each answer the next batch is sent. With messages for more than five batches it returns while the last
// five are under way, and the next call continues with these: the window slides from call to call. Messages are credited up
// to the first that is not acknowledged. The broker rejects the batches behind that one, because their numbers are out of
// order, and they are sent again after it. Five is how many batches a broker remembers to recognize a copy. Only one batch
// is under way
//
//   - after a failure, until a batch is acknowledged;
//   - while the broker may not know our numbers: before the first acknowledgement in an epoch, and when the lane has written
//     nothing for more than an hour. Kafka accepts any number from an unknown producer, and would accept the second batch
//     after rejecting the first;
//   - when one batch takes more than a tenth of the request timeout, because more in flight would not make it faster.
//
// When the numbering is lost, or when the caller returns with other messages while a batch is in doubt, the lane gets a new
// epoch from the coordinator, numbered from 0, whose marker makes the broker reject everything of the old one. Then the
// partition is read for what it holds.
//
// With idempotence: false all this is off, for brokers without producer IDs: batches carry no numbers, and batches in doubt
// are sent again without protection.
//
// # Restarts
//
// A restart is a take-over from oneself. The sink is [sinks.Stateful]: the journal has a transactional ID for it and, for
// each partition, where the newest acknowledgement ends, and which message that was. A partition is recorded before its
// first batch. The next process claims the ID at its first Publish. Before the first batch to a recorded partition it
// aborts a transaction without records over it, after which the broker rejects the batches of the dead process, and reads
// the partition from the recorded place on. Messages that are there are credited by their IDs. Lanes that start at the same
// time share one transaction. See docs/adr/0102.
//
// Where no transactional ID may be used, each lane has a producer ID of its own, and epochs that it counts up itself
// (KIP-360). What was in flight at a crash is written again then, which a condition says. See numberedSequencer.
//
// # Failover
//
// With a replicated state (see [Sink.Fence]) the places are in that, and all lanes are fenced and read before anything is
// published, because the journal may be empty. Epochs come from InitProducerId only. Error code 47 ends the right to publish
// permanently. See fence, fencedSequencer and docs/adr/0047.
//
// # Recreated topics
//
// A topic that was deleted and created again has another ID (KIP-516). Batches name it by the ID that their lane was
// prepared for, so the new topic takes none that were under way to the old one; brokers before 4.1 know names only. Lanes
// are recorded with the ID, and an offset in another topic is none. See docs/adr/0075.
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
// (KIP-219). No request is sent to that broker meanwhile; a Publish waits, and fails only when its ctx ends. The deadline of
// requests that were sent before is extended by the throttle time. See packages cluster and connection.
//
// # Memory
//
// One encoder per processor holds the uncompressed records of one batch (batchBytes, or one larger record). Each lane that
// is being published holds the compressed batches in flight, five at most, and the next one, until they are settled. Bytes
// that are unsettled at the end of a call are retained for the next one, 64 MiB over all lanes; beyond that only the
// boundaries of the batches are, and they are encoded again.
package kafka
