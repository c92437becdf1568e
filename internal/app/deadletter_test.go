package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// routerFunc is a sink of one lane that answers every message the same.
type routerFunc func() error

var _ sinks.Router = routerFunc(nil)

func (f routerFunc) Lane(context.Context, *event.Change) (sinks.Lane, error) { return "lane", nil }

func (f routerFunc) LaneTo(context.Context, *event.Change, *sinks.Template) (sinks.Lane, error) {
	return "lane", nil
}

func (f routerFunc) Publish(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	if err := f(); err != nil {
		return 0, err
	}
	return len(batch), nil
}

func (f routerFunc) Close(context.Context) error { return nil }

func TestADeadLetterThatWaitsIsToldOnceAndUntilItIsPublished(t *testing.T) {
	var log bytes.Buffer
	var answer error
	p := &deadLetterPublisher{of: "bus", to: &configuredSink{name: "main"}, sink: routerFunc(func() error { return answer }),
		condition: condition.New(slog.New(slog.NewTextHandler(&log, nil)), publishing)}
	publish := func(ctx context.Context, err error) {
		answer = err
		_ = p.publish(ctx, &event.Change{Type: event.Added}, "rejected: too large")
	}
	silent := func(when string) {
		t.Helper()
		if status := p.status(); status != "" {
			t.Errorf("%s the status is %q", when, status)
		}
	}
	silent("before the first")
	publish(t.Context(), nil)
	silent("after one that was published")
	for range 3 {
		publish(t.Context(), &sinks.UnavailableError{Reason: "no broker answers"})
		if status := p.status(); !strings.HasPrefix(status, "dead letters wait for sink main: ") || !strings.Contains(status, "no broker answers") {
			t.Errorf("while one waits the status is %q", status)
		}
	}
	publish(t.Context(), nil)
	silent("after it was published")
	publish(t.Context(), errors.New("topic unknown"))
	publish(t.Context(), &sinks.RejectedError{Reason: "too large there, too"}) // it stays in the journal
	silent("after one that is refused there, too,")
	ended, end := context.WithCancel(t.Context())
	end()
	publish(ended, context.Canceled)
	silent("after a stop")
	if waits, again := strings.Count(log.String(), "its lane waits"), strings.Count(log.String(), "published again"); waits != 2 || again != 2 {
		t.Errorf("two outages made %d lines at their beginning and %d at their end:\n%s", waits, again, log.String())
	}
}

func TestATargetOfDeadLettersThatIsNotReachedIsToldBeforeTheFirst(t *testing.T) {
	p := &deadLetterPublisher{condition: condition.New(slog.New(slog.DiscardHandler), publishing), to: &configuredSink{name: "main", trouble: func() string { return "not connected to NATS" }}}
	if status := p.status(); status != "dead letters wait for sink main: not connected to NATS" {
		t.Errorf("the status is %q", status)
	}
}
