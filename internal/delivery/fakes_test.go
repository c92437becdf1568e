package delivery

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ Journal    = journalFuncs{}
	_ sinks.Sink = sinkFuncs{}
)

type journalFuncs struct {
	read   func(ctx context.Context, after uint64) ([]event.Record, error)
	settle func(ctx context.Context, c Cursor, dead []DeadLetter) error
}

func (j journalFuncs) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	return j.read(ctx, after)
}

func (j journalFuncs) Settle(ctx context.Context, c Cursor, dead []DeadLetter) error {
	return j.settle(ctx, c, dead)
}

type sinkFuncs struct {
	lane    func(ctx context.Context, c *event.Change) (sinks.Lane, error)
	publish func(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error)
}

func (s sinkFuncs) Lane(ctx context.Context, c *event.Change) (sinks.Lane, error) {
	return s.lane(ctx, c)
}

func (s sinkFuncs) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	return s.publish(ctx, lane, batch)
}

func (s sinkFuncs) Close(context.Context) error { return nil }
