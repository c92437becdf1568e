package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Destination is a configured sink without a pipeline, to see whether it can be reached. It is not safe for concurrent use.
type Destination struct{ sink *configuredSink }

// OpenDestination makes the configured sink with a name, without the state of an earlier process. It opens no connection.
// The caller closes it.
func OpenDestination(cfg *config.Config, name string) (*Destination, error) {
	setRoutedTopics(cfg)
	s, err := sinkConfigByName(cfg, name)
	if err != nil {
		return nil, err
	}
	sink, err := newSink(s, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", name, err)
	}
	return &Destination{sink}, restoreWithoutState(sink.sink)
}

// Ping checks that the destination can be reached, each server of it, which may take until ctx ends. supported is false if
// the sink has no ping: what accepts a connection may still refuse what is sent.
func (d *Destination) Ping(ctx context.Context) (supported bool, err error) {
	pinger, supported := d.sink.sink.(sinks.Pinger)
	if supported {
		err = pinger.Ping(ctx)
	}
	if servers, ok := d.sink.sink.(sinks.ServerChecker); ok && err == nil {
		err = servers.CheckServers(ctx)
	}
	return supported, err
}

// Warning returns a guarantee that the destination does not have, as far as a ping shows; "" if there is none.
func (d *Destination) Warning() string {
	if reporter, ok := d.sink.sink.(sinks.ConditionReporter); ok {
		for _, c := range reporter.Conditions() {
			if c.Code == condition.SinkMayLose {
				return c.Cause
			}
		}
	}
	return ""
}

// Close closes the sink. It takes a few seconds at most.
func (d *Destination) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return d.sink.sink.Close(ctx)
}

// publishTruncated publishes one message, truncated step by step until it is small enough.
func publishTruncated(ctx context.Context, s sinks.Sink, m sinks.Message) error {
	for {
		err := publishOne(ctx, s, m)
		var rejected *sinks.RejectedError
		if !errors.As(err, &rejected) || !rejected.TooLarge {
			return err
		}
		smaller, ok := shape.TruncateOnce(m.Change)
		if !ok {
			return err
		}
		m.Change = smaller
	}
}

// publishOne publishes one message.
func publishOne(ctx context.Context, s sinks.Sink, m sinks.Message) error {
	lane, err := s.Lane(m.Change)
	if router, ok := s.(sinks.Router); ok {
		lane, err = router.LaneTo(m.Change, m.Topic)
	}
	if err != nil {
		return err
	}
	_, err = s.Publish(ctx, lane, []sinks.Message{m})
	return err
}
