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

// looks is how many looks at an idle cluster fail, one behind the other, before it is told away: a connection that was idle
// may just be closed, and one broker of several be dead without harm.
const looks = 3

// Ping looks whether Kafka still answers, unless a change was acknowledged within quiet. Status tells a failure until a
// later look, or a Publish, succeeds. It takes no longer than a few request timeouts and may run while others call Lane and
// Publish.
func (s *Sink) Ping(ctx context.Context, quiet time.Duration) error {
	began := time.Now()
	if !s.status.quietSince(began.Add(-quiet)) {
		return nil
	}
	var err error
	for range looks {
		if err = s.cluster.greet(ctx); err == nil {
			s.status.answers(began)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	reason := s.unreached(err)
	if judge(err) == unauthorized {
		_, reason = refusal("", err)
	}
	s.status.silent(began, reason, err)
	return err
}

// look asks about one topic or, where that is "", for any broker.
func (s *Sink) look(ctx context.Context, topic string) error {
	if topic != "" {
		_, err := s.refresh(ctx, s.topic(topic), nil)
		return err
	}
	return s.explain(ctx, "", twice(ctx, func() error { return s.cluster.greet(ctx) }))
}
