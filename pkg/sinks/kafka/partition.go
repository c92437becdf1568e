package kafka

import (
	"context"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// partitionClient sends requests to the leader of one partition. It is safe for concurrent use.
type partitionClient struct {
	cluster        *cluster.Cluster
	reader         *cluster.Reader
	topics         *topicCatalog
	requestTimeout time.Duration

	topic *topic
	index int32
}

func (p *partitionClient) String() string { return p.id().String() }

func (p *partitionClient) id() cluster.Partition {
	return cluster.Partition{Topic: p.topic.name, Index: p.index}
}

// produce sends a batch for the topic with this ID to a broker and does not wait for the answer.
func (p *partitionClient) produce(leader int32, id protocol.TopicID, batch []byte, purpose cluster.Purpose) (*connection.Pending, error) {
	return p.cluster.Produce(leader, protocol.RecordBatch{Topic: p.topic.name, TopicID: id, Partition: p.index, Bytes: batch}, purpose)
}

// askLeader calls ask with the leader of the partition, and again with the leader after a metadata refresh when that fails.
// Its errors concern this lane only, unless no broker answers at all.
func (p *partitionClient) askLeader(ctx context.Context, ask func(by cluster.Lead) error) error {
	const tries = 3 // the first failure is often a stale connection
	for try := 1; ; try++ {
		seen := p.topic.layout.Load()
		by, err := seen.Lead(p.index)
		if err == nil {
			err = ask(by)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case protocol.ClassifyError(err) == protocol.Unauthorized:
			return p.cluster.AuthorizationError(p.topic.name, err)
		}
		if _, err := p.topics.refreshLayout(ctx, p.topic, seen); err != nil {
			return err
		}
		if try == tries {
			return err
		}
	}
}
