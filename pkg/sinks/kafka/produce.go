package kafka

import (
	"bytes"
	"fmt"
	"io"
	"time"

	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// pipelinedProduce is record batches of one partition that leave on one connection, each without waiting for the answer to
// the one before. A request carries only one batch per partition, so it is as many requests. A broker takes up the requests
// of a connection one after the other and answers in that order (kafka.apache.org/protocol#protocol_network), so no batch
// overtakes another. The library gives a connection to one request at a time, and takes these for one.
type pipelinedProduce struct {
	topic     string
	partition int32
	timeout   int32 // milliseconds the broker may take for each batch
	batches   [][]byte
	deadline  *exchangeDeadline
}

// produceAnswers are what the broker said to the first batches: nil where a batch is durable.
type produceAnswers []error

// cutShort is a pipelined produce whose last batches have no answer. What became of them is unknown.
type cutShort struct {
	answered produceAnswers
	err      error
}

var (
	_ Exchanger = (*pipelinedProduce)(nil)
	_ Exchanger = (*protocol.RawRequest)(nil)
)

func (t *pipelinedProduce) ApiKey() kproto.ApiKey { return kproto.Produce }
func (a produceAnswers) ApiKey() kproto.ApiKey    { return kproto.Produce }

func (e *cutShort) Error() string { return e.err.Error() }
func (e *cutShort) Unwrap() error { return e.err }

// Exchange writes all requests and reads their answers. These are small: no broker waits for us to read them. After an
// answer with a throttle time the broker leaves the rest unread for that long (KIP-219).
func (t *pipelinedProduce) Exchange(rw io.ReadWriter, version int16, correlation int32, clientID string) (kproto.Message, error) {
	if err := t.deadline.bind(rw); err != nil {
		return nil, err
	}
	defer t.deadline.release()
	for i, batch := range t.batches {
		if err := kproto.WriteRequest(rw, version, correlation+int32(i), clientID, t.request(batch)); err != nil {
			return nil, err
		}
	}
	var got produceAnswers
	for i := range t.batches {
		id, m, err := kproto.ReadResponse(rw, kproto.Produce, version)
		if err == nil && id != correlation+int32(i) {
			err = fmt.Errorf("answer %d to request %d", id, correlation+int32(i))
		}
		if err != nil {
			return nil, &cutShort{got, err}
		}
		r := m.(*produce.Response)
		answer, err := t.read(r)
		if err != nil {
			return nil, &cutShort{got, err}
		}
		got = append(got, answer)
		if err := t.deadline.extend(time.Duration(r.ThrottleTimeMs) * time.Millisecond); err != nil {
			return nil, &cutShort{got, err}
		}
	}
	return got, nil
}

func (t *pipelinedProduce) request(batch []byte) *rawproduce.Request {
	return &rawproduce.Request{Acks: acksAll, Timeout: t.timeout, Topics: []rawproduce.RequestTopic{{
		Topic: t.topic, Partitions: []rawproduce.RequestPartition{{
			Partition: t.partition, RecordSet: kproto.RawRecordSet{Reader: bytes.NewReader(batch)},
		}},
	}}}
}

// read returns what the broker says about one batch, or that this is no answer to it.
func (t *pipelinedProduce) read(r *produce.Response) (answer, err error) {
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].Partition != t.partition {
		return nil, fmt.Errorf("the broker answered for other partitions than asked for")
	}
	p := r.Topics[0].Partitions[0]
	return protocol.CodeError(p.ErrorCode, p.ErrorMessage), nil
}
