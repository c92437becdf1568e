package protocol

import (
	"bytes"

	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	acksAll = -1
	// producesByID is the version of Produce from which on topics have IDs instead of names (KIP-516, Kafka 4.1).
	producesByID = 13
	// lengthPrefix is the size of the length before an encoded batch, as in requests with topic names.
	lengthPrefix = 4
)

// RecordBatch is an encoded record batch with its length prefix, and its target.
type RecordBatch struct {
	Topic     string
	TopicID   TopicID // of the only topic that may take it, from Kafka 4.1 on; zero: the one that has the name
	Partition int32
	Bytes     []byte // must not change before the answer
}

// HasTopicID reports whether the batch is for one topic only, whatever its name.
func (b *RecordBatch) HasTopicID() bool { return b.TopicID != TopicID{} }

// ProduceRequest sends batches, each to a partition of its own. All have topic IDs, or none has.
type ProduceRequest struct {
	TimeoutMillis int32
	Batches       []RecordBatch
}

var _ Negotiated = ProduceRequest{}

// ApiKey implements [kproto.Message].
func (ProduceRequest) ApiKey() kproto.ApiKey { return kproto.Produce }

// AtVersion implements [Negotiated].
func (r ProduceRequest) AtVersion(newest int16) kproto.Message {
	if newest >= producesByID && r.Batches[0].HasTopicID() {
		return r.byID()
	}
	request, at := &rawproduce.Request{Acks: acksAll, Timeout: r.TimeoutMillis}, map[string]int{}
	for _, b := range r.Batches {
		i, known := at[b.Topic]
		if !known {
			i, at[b.Topic] = len(request.Topics), len(request.Topics)
			request.Topics = append(request.Topics, rawproduce.RequestTopic{Topic: b.Topic})
		}
		request.Topics[i].Partitions = append(request.Topics[i].Partitions, rawproduce.RequestPartition{
			Partition: b.Partition, RecordSet: kproto.RawRecordSet{Reader: bytes.NewReader(b.Bytes)},
		})
	}
	return request
}

func (r ProduceRequest) byID() ForeignRequest {
	request, at := kmsg.NewPtrProduceRequest(), map[TopicID]int{}
	request.SetVersion(producesByID)
	request.Acks, request.TimeoutMillis = acksAll, r.TimeoutMillis
	for _, b := range r.Batches {
		i, known := at[b.TopicID]
		if !known {
			i, at[b.TopicID] = len(request.Topics), len(request.Topics)
			topic := kmsg.NewProduceRequestTopic()
			topic.TopicID = b.TopicID
			request.Topics = append(request.Topics, topic)
		}
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = b.Partition, b.Bytes[lengthPrefix:]
		request.Topics[i].Partitions = append(request.Topics[i].Partitions, p)
	}
	return ForeignRequest{request}
}

// ProduceAnswer is the answer to a batch. It has the topic's name or ID, as the request.
type ProduceAnswer struct {
	Topic      string
	TopicID    TopicID
	Partition  int32
	Err        error
	BaseOffset int64 // of the first record; below zero if the broker does not report it
	LogStart   int64 // of the oldest record in the partition; zero or below if the broker does not report it
}

// ProduceAnswers returns the answers in the response to a [ProduceRequest].
func ProduceAnswers(response kproto.Message) (all []ProduceAnswer) {
	if byID, ok := response.(ForeignResponse); ok {
		for _, t := range byID.Response.(*kmsg.ProduceResponse).Topics {
			for _, p := range t.Partitions {
				all = append(all, ProduceAnswer{"", t.TopicID, p.Partition, CodeError(p.ErrorCode, ""), p.BaseOffset, p.LogStartOffset})
			}
		}
		return all
	}
	for _, t := range response.(*produce.Response).Topics {
		for _, p := range t.Partitions {
			all = append(all, ProduceAnswer{t.Topic, TopicID{}, p.Partition, CodeError(p.ErrorCode, ""), p.BaseOffset, p.LogStartOffset})
		}
	}
	return all
}
