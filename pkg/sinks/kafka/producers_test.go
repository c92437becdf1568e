package kafka

import (
	"encoding/binary"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// producers is what a fake cluster remembers about producers for DescribeProducers. kfake itself only tells about those
// in transactions.
type producers struct {
	mu    sync.Mutex
	known map[int64]producerAt // by ID, which is one lane's alone
}

// tellProducers makes a fake cluster answer DescribeProducers as Kafka does.
func tellProducers(c *kfake.Cluster) {
	p := &producers{known: map[int64]producerAt{}}
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		p.see(r.(*kmsg.ProduceRequest))
		return nil, nil, false
	})
	c.ControlKey(describeProducers, func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return p.tell(r.(*kmsg.DescribeProducersRequest)), nil, true
	})
}

// see notes the batches that the cluster is about to take: those that follow the newest one, or begin an epoch.
func (p *producers) see(r *kmsg.ProduceRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	be := binary.BigEndian
	for _, t := range r.Topics {
		for _, part := range t.Partitions {
			b := part.Records
			id, epoch := int64(be.Uint64(b[atProducerID:])), int32(be.Uint16(b[atEpoch:]))
			first, last := int32(be.Uint32(b[atSequence:])), int32(be.Uint32(b[atSequence:]))+int32(be.Uint32(b[atCount:]))-1
			at, known := p.known[id]
			if !known || epoch > at.epoch || epoch == at.epoch && first == at.last+1 {
				p.known[id] = producerAt{epoch, last}
			}
		}
	}
}

func (p *producers) tell(r *kmsg.DescribeProducersRequest) kmsg.Response {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := r.ResponseKind().(*kmsg.DescribeProducersResponse)
	for _, t := range r.Topics {
		topic := kmsg.NewDescribeProducersResponseTopic()
		topic.Topic = t.Topic
		for _, number := range t.Partitions {
			part := kmsg.NewDescribeProducersResponseTopicPartition()
			part.Partition = number
			for id, at := range p.known {
				producer := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
				producer.ProducerID, producer.ProducerEpoch, producer.LastSequence = id, at.epoch, at.last
				part.ActiveProducers = append(part.ActiveProducers, producer)
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		answer.Topics = append(answer.Topics, topic)
	}
	return answer
}
