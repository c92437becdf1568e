package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// UnavailableRetry is the time between two attempts while no broker answers. It does not grow: a connection attempt a second
// is cheap, and the recovery is noticed within a second after any outage.
const UnavailableRetry = time.Second

// SinkError turns the error of any request but produce into an error of the [sinks.Sink] contract. topic may be "".
func (c *Cluster) SinkError(ctx context.Context, topic string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case protocol.ClassifyError(err) == protocol.Unauthorized:
		return c.AuthorizationError(topic, err)
	case protocol.IsBrokerError(err):
		return fmt.Errorf("topic %q: %w", topic, err)
	}
	return c.unreachableError(err)
}

// ReadError is SinkError for a topic that is only read.
func (c *Cluster) ReadError(ctx context.Context, topic string, err error) error {
	switch {
	case errors.Is(err, kafka.UnknownTopicOrPartition):
		return condition.Problem{
			Code: condition.SinkTargetMissing, Cause: fmt.Sprintf("topic %q does not exist", topic), Remedy: "create it, or correct its name",
		}.Wrap(err)
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return condition.Problem{
			Code: condition.SinkUnauthorized, Cause: fmt.Sprintf("no right to read topic %q", topic), Remedy: "grant READ and DESCRIBE on it",
		}.Wrap(err)
	}
	return c.SinkError(ctx, topic, err)
}

// unreachableError returns the cause and the remedy of a failed connection.
func (c *Cluster) unreachableError(err error) error {
	var credentials *auth.CredentialError
	p := condition.ProblemOf(err, "") // of a broker to which there is no connection
	switch {
	case errors.As(err, &credentials):
		p = condition.Problem{Code: condition.SinkUnauthorized, Cause: "the Kafka credentials cannot be read: " + err.Error(), Remedy: "check kafka.sasl and kafka.tls"}
	case p.Code != "":
	default:
		if p = c.pool.peer().Problem(err); p.Code == condition.SinkUnreachable {
			p.Cause = fmt.Sprintf("no broker of %s answers: %s", c.addresses, p.Cause)
		}
	}
	return &sinks.UnavailableError{Code: p.Code, Reason: p.Cause, Remedy: p.Remedy, After: UnavailableRetry}
}

// AuthorizationError turns a refusal into an error with the remedy: an UnavailableError when the credentials or idempotent
// writes are refused, which stops the whole sink; an ordinary error when only this topic is.
func (c *Cluster) AuthorizationError(topic string, err error) error {
	e := &sinks.UnavailableError{Code: condition.SinkUnauthorized, Err: err}
	switch {
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		e.Reason, e.Remedy = "Kafka refuses the credentials", "check kafka.sasl"
	case errors.Is(err, kafka.UnsupportedSASLMechanism), errors.Is(err, kafka.IllegalSASLState):
		e.Reason, e.Remedy = "Kafka does not offer this SASL mechanism", "check kafka.sasl.mechanism, and the port in kafka.brokers"
	case errors.Is(err, kafka.ClusterAuthorizationFailed), errors.Is(err, kafka.TransactionalIDAuthorizationFailed):
		e.Reason, e.Remedy = "Kafka refuses idempotent writes", "grant WRITE on the topics (before Kafka 3.0 also IDEMPOTENT_WRITE on the cluster)"
	default:
		return condition.Problem{
			Code: condition.SinkUnauthorized, Cause: fmt.Sprintf("no right to write to topic %q", topic),
			Remedy: "grant WRITE and DESCRIBE on it (and CREATE for kafka.createTopics)",
		}.Wrap(err)
	}
	return e
}
