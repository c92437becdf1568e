package kafka

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// answerDescribeProducers makes a fake cluster answer DescribeProducers as Kafka does, from its log. kfake itself returns
// only producers with transactions.
func answerDescribeProducers(t testing.TB, c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.DescribeProducers), func(request kmsg.Request) (answer kmsg.Response, err error, _ bool) {
		c.KeepControl()
		c.SleepControl(func() { answer = describeProducers(t, c, request.(*kmsg.DescribeProducersRequest)) })
		return answer, nil, true
	})
}

func describeProducers(t testing.TB, c *kfake.Cluster, r *kmsg.DescribeProducersRequest) kmsg.Response {
	answer := r.ResponseKind().(*kmsg.DescribeProducersResponse)
	for _, asked := range r.Topics {
		topic := kmsg.NewDescribeProducersResponseTopic()
		topic.Topic = asked.Topic
		for _, number := range asked.Partitions {
			part := kmsg.NewDescribeProducersResponseTopicPartition()
			part.Partition = number
			part.ActiveProducers = slices.Collect(maps.Values(producersIn(t, c, asked.Topic, number)))
			topic.Partitions = append(topic.Partitions, part)
		}
		answer.Topics = append(answer.Topics, topic)
	}
	return answer
}

type activeProducer = kmsg.DescribeProducersResponseTopicPartitionActiveProducer

// producersIn reads from a partition the last sequence of each producer ID. Each lane has an ID of its own.
func producersIn(t testing.TB, c *kfake.Cluster, topic string, partition int32) map[int64]activeProducer {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.MaxVersions(kversion.V2_7_0())) // later ones name topics by ID
	if err != nil {
		t.Error(err)
		return nil
	}
	defer client.Close()
	part := kmsg.NewFetchRequestTopicPartition()
	part.Partition, part.PartitionMaxBytes = partition, 64<<20
	asked := kmsg.NewFetchRequestTopic()
	asked.Topic, asked.Partitions = topic, []kmsg.FetchRequestTopicPartition{part}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.MaxBytes, fetch.Topics = 64<<20, []kmsg.FetchRequestTopic{asked}
	r, err := client.Broker(int(c.LeaderFor(topic, partition))).Request(ctx, fetch)
	if err != nil {
		t.Error(err)
		return nil
	}
	be := binary.BigEndian
	known := map[int64]activeProducer{}
	for b := r.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches; len(b) > record.HeaderSize; {
		last := int32(be.Uint32(b[record.AtSequence:])) + int32(be.Uint32(b[record.AtCount:])) - 1
		id := int64(be.Uint64(b[record.AtProducerID:]))
		known[id] = activeProducer{ProducerID: id, ProducerEpoch: int32(be.Uint16(b[record.AtEpoch:])), LastSequence: last}
		b = b[record.AtLeaderEpoch+be.Uint32(b[record.AtBatchLength:]):]
	}
	return known
}
