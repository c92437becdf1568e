package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Check looks for Kafka as the first Publish does: for a broker that lets us in and, where all changes go to one topic, for
// that topic, which it creates, or holds against kafka.createTopics, where that is configured. Status tells a failure until
// a later Check, or a Publish, succeeds. Its errors mean what Publish's do: they may pass, and nobody needs to call Check
// again. It takes no longer than a few request timeouts and may run while others call Lane and Publish.
func (s *Sink) Check(ctx context.Context) error {
	topic := ""
	if s.template.Fixed() {
		topic = s.template.String()
	}
	began := time.Now()
	if err := s.look(ctx, topic); err != nil {
		var told *sinks.UnavailableError
		if ctx.Err() == nil && !errors.As(err, &told) { // to Publish it is a matter of one topic; here there is no other
			s.status.fails(topic, err.Error(), err)
		}
		return err
	}
	s.status.found(topic, began)
	return nil
}

// look asks about one topic or, where that is "", for any broker.
func (s *Sink) look(ctx context.Context, topic string) error {
	if topic != "" {
		_, err := s.refresh(ctx, s.topic(topic), nil)
		return err
	}
	return s.explain(ctx, "", twice(ctx, func() error { return s.cluster.greet(ctx) }))
}
