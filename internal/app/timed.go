package app

import (
	"context"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// timedSink wraps a sink so that observe is told how long each Publish takes.
func timedSink(s sinks.Sink, observe func(time.Duration)) sinks.Sink {
	if stateful, ok := s.(sinks.Stateful); ok {
		return timedStateful{stateful, timed{s, observe}}
	}
	return timed{s, observe}
}

type timedStateful struct {
	sinks.Stateful
	timed timed
}

func (t timedStateful) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	return t.timed.Publish(ctx, lane, batch)
}

// timed tells how long each Publish of a sink takes.
type timed struct {
	sinks.Sink
	observe func(time.Duration)
}

func (t timed) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	began := time.Now()
	n, err := t.Sink.Publish(ctx, lane, batch)
	t.observe(time.Since(began))
	return n, err
}

// LaneTo makes what is timed a sinks.Router: the configuration names topics only where the sink itself is
// one.
func (t timed) LaneTo(ctx context.Context, c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	return laneTo(ctx, t.Sink, c, topic)
}

func (t timedStateful) LaneTo(ctx context.Context, c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	return laneTo(ctx, t.Stateful, c, topic)
}

func laneTo(ctx context.Context, s sinks.Sink, c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if router, ok := s.(sinks.Router); ok {
		return router.LaneTo(ctx, c, topic)
	}
	return "", fmt.Errorf("the sink knows one place only, not %s", topic)
}
