package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/initproducerid"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// NoID stands for an unknown producer ID, epoch or coordinator.
const NoID = -1

// NewProducerID requests a producer ID, with epoch 0, for writing to a topic. An InitProducerId request without a
// transactional ID goes to any broker (KIP-98).
func (c *Cluster) NewProducerID(ctx context.Context, topic string) (id int64, epoch int16, err error) {
	err = retryOnce(ctx, func() error {
		answer, err := c.request(ctx, anyBroker, &initproducerid.Request{
			TransactionTimeoutMs: int32(time.Minute.Milliseconds()), ProducerID: NoID, ProducerEpoch: NoID,
		})
		if err != nil {
			return err
		}
		r := answer.(*initproducerid.Response)
		id, epoch = r.ProducerID, r.ProducerEpoch
		return protocol.CodeError(r.ErrorCode, "")
	})
	if errors.Is(err, kafka.UnsupportedVersion) {
		return 0, 0, &sinks.UnavailableError{
			Code: condition.SinkMisconfigured, Reason: "Kafka does not issue producer IDs", Err: err,
			Remedy: "set kafka.idempotence to false, or use brokers from Kafka 0.11 on",
		}
	}
	if err != nil && protocol.IsBrokerError(err) && protocol.ClassifyError(err) != protocol.Unauthorized {
		return 0, 0, fmt.Errorf("cannot get a producer ID for topic %q: %w", topic, err)
	}
	return id, epoch, c.SinkError(ctx, topic, err)
}
