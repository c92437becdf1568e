package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

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
	g := &graveyard{of: "bus", in: "main", sink: routerFunc(func() error { return answer }),
		trouble: func() string { return "" }, log: slog.New(slog.NewTextHandler(&log, nil))}
	bury := func(ctx context.Context, err error) {
		answer = err
		_ = g.bury(ctx, &event.Change{Type: event.Added}, "rejected: too large")
	}
	silent := func(when string) {
		t.Helper()
		if status := g.status(); status != "" {
			t.Errorf("%s the status is %q", when, status)
		}
	}
	silent("before the first")
	bury(t.Context(), nil)
	silent("after one that was published")
	for range 3 {
		bury(t.Context(), &sinks.UnavailableError{Reason: "no broker answers"})
		if status := g.status(); !strings.HasPrefix(status, "dead letters wait for sink main: ") || !strings.Contains(status, "no broker answers") {
			t.Errorf("while one waits the status is %q", status)
		}
	}
	bury(t.Context(), nil)
	silent("after it was published")
	bury(t.Context(), errors.New("topic unknown"))
	bury(t.Context(), &sinks.RejectedError{Reason: "too large there, too"}) // it stays in the journal
	silent("after one that is refused there, too,")
	ended, end := context.WithCancel(t.Context())
	end()
	bury(ended, context.Canceled)
	silent("after a stop")
	if waits, again := strings.Count(log.String(), "its lane waits"), strings.Count(log.String(), "published again"); waits != 2 || again != 2 {
		t.Errorf("two outages made %d lines at their beginning and %d at their end:\n%s", waits, again, log.String())
	}
}

func TestATargetOfDeadLettersThatIsNotReachedIsToldBeforeTheFirst(t *testing.T) {
	g := &graveyard{in: "main", trouble: func() string { return "not connected to NATS" }}
	if status := g.status(); status != "dead letters wait for sink main: not connected to NATS" {
		t.Errorf("the status is %q", status)
	}
}
