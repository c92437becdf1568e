package e2e

import (
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

// rawRecord is a record as a bus stores it.
type rawRecord struct {
	subject string // of NATS
	key     []byte // of Kafka
	headers []kgo.RecordHeader
	value   []byte

	stored format.Stored
}

// identify reads what the record is about.
func (r rawRecord) identify() rawRecord {
	r.stored, _ = format.ReadStored(r.value, func(name string) string {
		for _, h := range r.headers {
			if h.Key == name || h.Key == "Kubecdc-"+strings.ToUpper(name[:1])+name[1:] {
				return string(h.Value)
			}
		}
		if name == format.HeaderKey {
			return string(r.key)
		}
		return ""
	})
	return r
}

// rawLanes are the records of a topic by partition, or of a stream.
type rawLanes [][]rawRecord

// readTopic reads all of a topic.
func (s *fixture) readTopic(topic string) rawLanes {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...), kgo.ConsumeTopics(topic), kgo.KeepControlRecords())
	s.must(err)
	defer client.Close()
	answer, err := kmsg.NewPtrMetadataRequest().RequestWith(s.t.Context(), client)
	s.must(err)
	var lanes rawLanes
	for _, t := range answer.Topics {
		if *t.Topic == topic {
			lanes = make(rawLanes, len(t.Partitions))
		}
	}
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = topic
	for i := range lanes {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = int32(i), -1
		asked.Partitions = append(asked.Partitions, p)
	}
	request.Topics = append(request.Topics, asked)
	offsets, err := request.RequestWith(s.t.Context(), client)
	s.must(err)
	left := map[int32]int64{}
	for _, t := range offsets.Topics {
		for _, p := range t.Partitions {
			if p.Offset > 0 {
				left[p.Partition] = p.Offset
			}
		}
	}
	for len(left) > 0 {
		fetches := client.PollFetches(s.t.Context())
		s.must(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				lanes[r.Partition] = append(lanes[r.Partition], rawRecord{key: r.Key, headers: r.Headers, value: r.Value}.identify())
			}
			if end, reading := left[r.Partition]; reading && r.Offset+1 >= end {
				delete(left, r.Partition)
			}
		})
	}
	return lanes
}

// openStream opens a stream as an operator. hangUp ends the connection.
func (s *fixture) openStream(name string) (js jetstream.JetStream, stream jetstream.Stream, hangUp func()) {
	s.t.Helper()
	js, hangUp, err := bus.Operate(s.nats.URL())
	s.must(err)
	stream, err = js.Stream(s.t.Context(), name)
	s.must(err)
	return js, stream, hangUp
}

// writeTopic creates a topic with these records.
func (s *fixture) writeTopic(topic string, lanes rawLanes) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...))
	s.must(err)
	defer client.Close()
	s.must(createTopic(s.t.Context(), client, topic, int32(len(lanes)), nil))
	s.produce(topic, lanes)
}

// produce writes records to the partitions of a topic.
func (s *fixture) produce(topic string, lanes rawLanes) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	s.must(err)
	defer client.Close()
	var records []*kgo.Record
	for i, lane := range lanes {
		for _, r := range lane {
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(i), Key: r.key, Headers: r.headers, Value: r.value})
		}
	}
	s.must(client.ProduceSync(s.t.Context(), records...).FirstErr())
}

// readStream reads all of a stream.
func (s *fixture) readStream(name string) rawLanes {
	s.t.Helper()
	_, stream, hangUp := s.openStream(name)
	defer hangUp()
	consumer, err := stream.OrderedConsumer(s.t.Context(), jetstream.OrderedConsumerConfig{})
	s.must(err)
	end := stream.CachedInfo().State.LastSeq
	var lane []rawRecord
	for {
		m, err := consumer.Next()
		s.must(err)
		meta, err := m.Metadata()
		s.must(err)
		if !strings.HasPrefix(m.Subject(), "kubecdc.fence.") {
			lane = append(lane, newRawRecord(m.Subject(), m.Headers(), m.Data()))
		}
		if meta.Sequence.Stream >= end {
			return rawLanes{lane}
		}
	}
}

// writeStream creates a stream with these messages, whose subjects begin with its name in place of another one.
func (s *fixture) writeStream(name, former string, lanes rawLanes, config jetstream.StreamConfig) {
	s.t.Helper()
	config.Name = name
	s.writeSubjects(name, former, lanes, config)
}

// writeBucket creates a bucket with these messages, of which it keeps the newest of each key.
func (s *fixture) writeBucket(name, former string, lanes rawLanes, config jetstream.StreamConfig) {
	s.t.Helper()
	config.Name, config.MaxMsgsPerSubject = "KV_"+name, 1
	s.writeSubjects("$KV."+name, "$KV."+former, lanes, config)
}

func (s *fixture) writeSubjects(prefix, former string, lanes rawLanes, config jetstream.StreamConfig) {
	s.t.Helper()
	js, hangUp, err := bus.Operate(s.nats.URL())
	s.must(err)
	defer hangUp()
	config.Subjects, config.AllowDirect = []string{prefix + ".>"}, true
	_, err = js.CreateStream(s.t.Context(), config)
	s.must(err)
	s.publish(js, prefix, former, lanes[0])
}

// recordBucket records what is published to a bucket from now on: it keeps nothing of what newer values replace. published
// ends that, after the last writer.
func (s *fixture) recordBucket(name string) (published func() rawLanes) {
	s.t.Helper()
	js, hangUp, err := bus.Operate(s.nats.URL())
	s.must(err)
	s.t.Cleanup(hangUp)
	arriving, err := js.Conn().SubscribeSync("$KV." + name + ".>")
	s.must(err)
	s.must(arriving.SetPendingLimits(-1, -1))
	s.must(js.Conn().Flush())
	return func() rawLanes {
		s.must(js.Conn().Flush())
		left, _, err := arriving.Pending()
		s.must(err)
		var lane []rawRecord
		for range left {
			m, err := arriving.NextMsgWithContext(s.t.Context())
			s.must(err)
			lane = append(lane, newRawRecord(m.Subject, m.Header, m.Data))
		}
		return rawLanes{lane}
	}
}

// newRawRecord returns a message of NATS, with the headers that are not about the way of its publishing.
func newRawRecord(subject string, headers nats.Header, value []byte) rawRecord {
	r := rawRecord{subject: subject, value: value}
	for key, values := range headers {
		if strings.HasPrefix(key, "Kubecdc-") || key == "KV-Operation" {
			r.headers = append(r.headers, kgo.RecordHeader{Key: key, Value: []byte(values[0])})
		}
	}
	return r.identify()
}

// publish publishes messages to subjects that begin with a name in place of another one.
func (s *fixture) publish(js jetstream.JetStream, name, former string, lane []rawRecord) {
	s.t.Helper()
	for _, r := range lane {
		m := &nats.Msg{Subject: name + strings.TrimPrefix(r.subject, former), Data: r.value, Header: nats.Header{}}
		for _, h := range r.headers {
			m.Header.Set(h.Key, string(h.Value))
		}
		_, err := js.PublishMsgAsync(m)
		s.must(err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-s.t.Context().Done():
		s.t.Fatal("the copy is not stored")
	}
}
