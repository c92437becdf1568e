// Package kafka delivers changes to Apache Kafka: in order, and without duplicates while the process lives, through lost
// answers, broken connections and moving leaders.
//
// It uses kafka-go for SASL and the coding of requests, and neither its Writer, which duplicates and reorders when
// connections break, nor its Transport, which gives a connection to one request at a time: see package connection. Requests
// that it has no types for have those of franz-go's kmsg. It never acknowledges a change before all in-sync replicas have it
// (acks=all), never retries a part of a batch, and never keeps more than five batches in flight per partition.
//
// Here are lanes, the numbers they write under, and repair. Package cluster asks brokers, state keeps the replicated state,
// record encodes batches, connection carries them, auth gets connections in, and protocol knows error codes.
//
// # Lanes
//
// A lane is a topic-partition, named "topic/3of6": partition 3 of a topic that has 6. The topic follows from the
// configured template, the partition from the Java client's murmur2 of the key, and the key is [event.Change.Key]. So
// all changes of one object are in one partition, and in the one where Java's producers would put the key. The number of
// partitions is in the name because objects change places with it. Nobody is asked for the name of a lane: changes of a
// topic whose partitions are not known yet, because it was not looked up, does not exist or may not be described, are in a
// lane of their own, whose Publish asks. A topic that has grown is noticed within half a minute. Either way the lanes are
// replaced when nothing of them is on its way; see [sinks.Repartitioner].
//
// # Idempotence
//
// Each lane has a producer ID of its own and numbers its records (KIP-98). A batch is encoded once; when the network
// fails or the answer is lost, the same bytes with the same numbers are sent until there is an answer. The leader of the
// partition writes them once, however often they arrive, and refuses what arrives late. Which messages are in such a
// batch outlives the call: the next Publish of the lane begins with them.
//
// A Publish that is handed more than one batch has up to five on their way, all on one connection, on which a broker keeps
// their order; with each answer the next one leaves. One that was handed more than five returns while the last five are on
// their way, and the next one goes on with these: the window slides from call to call. What is acknowledged counts up to
// the first that is not. The broker refuses those behind it, since their numbers are ahead of their turn, and they are sent
// again behind it: five is how far back a broker tells a copy from something new. It is one at a time
//
//   - after a failure, until a batch is acknowledged;
//   - while the broker may not know our numbers, which is before the first acknowledgement under them and when the lane has
//     written nothing for more than an hour: Kafka takes any number from a producer that it does not know, and so
//     would take the second batch after it has refused the first;
//   - where one takes more than a tenth of the request timeout, as waiting is not what costs there.
//
// When the numbering is lost, or when the caller comes back with other messages while a batch is in doubt, the lane
// begins a new epoch (KIP-360), numbered from 0. From the first batch of the new epoch on the broker refuses everything
// of the old one, so an old batch that is still under way somewhere cannot land behind newer ones.
//
// With idempotence: false all this is off, for brokers without producer IDs: batches carry no numbers, and batches in doubt
// are sent again without protection.
//
// # Restarts
//
// The numbering outlives the process: the sink is a [sinks.Stateful], and an epoch is durable in the journal, with the
// message it begins with, before its first batch is sent. Within an epoch the numbers follow the messages of the lane
// without a hole. So the next process asks the leader of the partition for the number of our newest record (KIP-664),
// waits until all in-sync replicas have it, and knows which messages are there. Whatever the journal held when it started
// goes on under the old numbers: should a batch of the dead process still arrive, the broker takes one of the two. What is
// newer begins an epoch, which fences the dead process for good, also one that runs on a copy of the journal. Nothing is
// there twice, as long as the broker tells; where it does not, because of its age or of missing rights, what was not
// stored as acknowledged is written again, and the log says so once. See recovery.go.
//
// # Take-over
//
// A sink that was fenced (see [Sink.Fence]) does all this in another way, as its journal may be empty: all lanes write under
// the producer ID of one transactional ID, still without transactions. Who takes over aborts a transaction without records
// over all lanes, after which brokers refuse older epochs, and reads back what the lanes hold. Epochs come from
// InitProducerId only: where a lane begins a new one by itself above, what it has on its way is turned away by such a
// transaction, and the partition is read for what is there. Code 47 ends the right to publish for good. See fence.go,
// fenced_lane.go and docs/adr/0047.
//
// # Repair
//
// With Config.Repair, a topic is read back when everything up to the end of a snapshot is settled, and keys that the
// snapshot lacks get tombstones. Their lane waits meanwhile. They go under an epoch that no message has, so that what is
// said above about numbers stays true. See repair.go and bury.go.
//
// # Records
//
// Key: group/resource/namespace/name. Timestamp: when it was sent, by which brokers expire records; none while the broker
// refuses ours (code 32), since the clocks differ. Value and headers by format:
//
//	json                     the native form; id, type, observedAt, content-type, cluster, and resource as kubectl writes
//	                         it ("deployments.apps"); snapshot, the ID of the one that the change belongs to, where there is one
//	debezium                 the envelope of Debezium; headers as json
//	upsert                   the object; headers as json
//	cloudevents              the native form; content-type, and ce_ and the name of each attribute
//	cloudevents-structured   attributes and native form in one object; content-type alone
//
// A value that the format does not have is null: control records in debezium, and control records and deletes in upsert.
// The header change then holds the native form without bodies. With the option tombstones, each delete in the format
// debezium is two records, the second one with the same key and headers and no value. They are one message to the caller:
// in one batch, acknowledged and refused together. The broker counts records, the caller messages.
//
// # Errors
//
// What the answer to a produce request means, by Kafka's error code:
//
//	0, 46                        written, now or by an earlier attempt: acknowledged
//	10, 18                       too large: the batch is halved; a single record is a RejectedError with TooLarge
//	87                           an invalid record in it: halved; a single record is a RejectedError
//	2                            damaged on the way: the same bytes, three times in all; then as 87
//	32                           the same records without a timestamp, as every batch of the lane for a minute
//	45, 59                       the broker does not know our numbers: new epoch, numbered from 0; twice in a row, then back-off
//	47, 90                       the broker knows a newer epoch: new producer ID, numbered from 0; likewise. A DeposedError of a
//	                             sink that was fenced
//	29                           no right to this topic: an error of the lane
//	31, 33, 34, 53, 58           no right to write, or not who we say: UnavailableError, the whole sink is held
//	3, 5, 6, 7, 13, 19, 20, 56,  not settled: ask who leads the partition. Another broker: the same bytes to it at once.
//	every other code, and every  A first failure of the network: the same bytes at once, as idle connections often prove
//	failure of the network       dead. Else the error goes to the caller, whose next call sends the same bytes
//
// Who leads which partition is asked for many topics in one request. A broker that does not answer is known to be away by
// all lanes, whose Publish fails at once until a probe, one a second, finds it back; other brokers are not concerned. When
// no broker answers at all, that is an UnavailableError. An unknown topic is created where that is configured; else its
// changes wait, by an ordinary error that says so, and other topics go on.
//
// # Quotas
//
// A broker that throttles us answers at once, with a throttle time, and reads nothing from that connection until it is over
// (KIP-219). No request is sent to that broker meanwhile; a Publish waits, and fails only when its ctx ends. What is on the
// connection already is waited for as much longer. See packages cluster and connection.
//
// # Memory
//
// One encoder per processor holds the uncompressed records of one batch (batchBytes, or one larger record). Each lane
// that is being published holds the compressed batches that are in flight, five at most and no more than it was handed, and
// the next one, until they are settled. What is unsettled when a call ends is held for the next one, 64 MiB over all lanes;
// beyond that only its boundaries are, and it is encoded again.
package kafka
