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

// tlsSettings are the configuration of certificates.
const tlsSettings = "kafka.tls"

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
	e := &sinks.UnavailableError{Code: condition.SinkUnauthorized, After: UnavailableRetry, Err: err}
	certificate := condition.CertificateProblem(err, tlsSettings)
	switch {
	case errors.As(err, &credentials):
		e.Reason, e.Remedy = "the Kafka credentials cannot be read", "check kafka.sasl and kafka.tls"
	case certificate.Cause != "":
		e.Code, e.Reason, e.Remedy = condition.SinkCertificate, certificate.Cause, certificate.Remedy
	default:
		e.Code, e.Reason = condition.SinkUnreachable, fmt.Sprintf("no broker of %s answers", c.addresses)
		e.Remedy = "check kafka.brokers, the network, and TLS on both sides"
	}
	return e
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
