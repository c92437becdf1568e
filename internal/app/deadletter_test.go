package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// routerFunc is a sink of one lane that answers every message the same.
type routerFunc func() error

var _ sinks.Router = routerFunc(nil)

func (f routerFunc) Lane(*event.Change) (sinks.Lane, error) { return "lane", nil }

func (f routerFunc) LaneTo(*event.Change, *sinks.Template) (sinks.Lane, error) {
	return "lane", nil
}

func (f routerFunc) Publish(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	if err := f(); err != nil {
		return 0, err
	}
	return len(batch), nil
}

func (f routerFunc) Close(context.Context) error { return nil }

func TestHeldDeadLetterIsReportedUntilPublished(t *testing.T) {
	var log bytes.Buffer
	var answer error
	p := &deadLetterPublisher{owner: "bus", target: &configuredSink{name: "main"}, router: routerFunc(func() error { return answer }),
		condition: condition.New(slog.New(slog.NewTextHandler(&log, nil)), "sink/bus", condition.Problem{})}
	publish := func(ctx context.Context, err error) {
		answer = err
		_ = p.publishDeadLetter(ctx, &event.Change{Type: event.Added}, "rejected: too large")
	}
	silent := func(when string) {
		t.Helper()
		if status := p.condition.Status(); !status.OK() {
			t.Errorf("%s the status is %+v", when, status)
		}
	}
	silent("before the first")
	publish(t.Context(), nil)
	silent("after one that was published")
	for range 3 {
		publish(t.Context(), &sinks.UnavailableError{Reason: "no broker answers"})
		if status := p.condition.Status(); !strings.HasPrefix(status.Cause, "dead letters wait for sink main: ") || !strings.Contains(status.Cause, "no broker answers") {
			t.Errorf("while one waits the status is %+v", status)
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
	if waits, again := strings.Count(log.String(), "cannot be published"), strings.Count(log.String(), "published again"); waits != 2 || again != 2 {
		t.Errorf("two outages made %d lines at their beginning and %d at their end:\n%s", waits, again, log.String())
	}
}

func TestUnreachableDeadLetterTargetIsReportedBeforeFirstUse(t *testing.T) {
	p := &deadLetterPublisher{target: &configuredSink{name: "main"}, condition: condition.New(slog.New(slog.DiscardHandler), "sink/bus", condition.Problem{})}
	p.recordOutcome(nil, &sinks.UnavailableError{Reason: "not connected to NATS"})
	if status := p.condition.Status(); status.Cause != "dead letters wait for sink main: unavailable: not connected to NATS" {
		t.Errorf("the status is %+v", status)
	}
}

// pingSink is a destination that answers a question when the test does.
type pingSink struct {
	routerFunc
	answers chan error
}

func (a pingSink) Ping(context.Context) error { return <-a.answers }

func TestStalePingResultIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer error
		to := pingSink{func() error { return answer }, make(chan error)}
		p := &deadLetterPublisher{
			target: &configuredSink{name: "main"}, router: to, condition: condition.New(slog.New(slog.DiscardHandler), "sink/bus", condition.Problem{}),
		}
		p.startPinging(config.Default().Delivery.Retry, func(err error) { t.Error(err) })
		publish := func(err error) {
			t.Helper()
			answer = err
			if got := p.publishDeadLetter(t.Context(), &event.Change{Type: event.Added}, "rejected: too large"); (got != nil) != (err != nil) {
				t.Errorf("published with %v", got)
			}
		}
		synctest.Wait() // until it is asked
		publish(errors.New("no broker answers"))
		to.answers <- nil
		synctest.Wait()
		if p.condition.Status().OK() {
			t.Error("no reason is reported although a dead letter waits")
		}
		publish(nil)
		time.Sleep(time.Minute) // until it is asked again
		publish(nil)
		to.answers <- errors.New("no broker answered")
		synctest.Wait()
		if status := p.condition.Status(); !status.OK() {
			t.Errorf("a letter was published, and yet %+v", status)
		}
		close(to.answers) // no question stays without an answer
		p.stopPinging()
	})
}

// pickySink refuses every other change of what is named bad, and takes everything else.
type pickySink struct{ accepted atomic.Int64 }

func (p *pickySink) Lane(c *event.Change) (sinks.Lane, error) {
	return sinks.Lane(c.Name), nil
}
func (p *pickySink) Close(context.Context) error { return nil }

func (p *pickySink) Publish(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	for n, m := range batch {
		if lane == "bad" && m.Offset%4 == 1 {
			return n, &sinks.RejectedError{Reason: "it is bad"}
		}
	}
	if lane == "bad" {
		return len(batch), nil
	}
	p.accepted.Add(int64(len(batch)))
	return len(batch), nil
}

func TestFullDeadLettersBlockOnlyTheirLane(t *testing.T) {
	const changes = 60
	dir, sink := t.TempDir(), &pickySink{}
	failed := func(err error) { t.Error(err) }
	var j *journal.Journal
	var cfg delivery.Config
	run := func() (*delivery.Pipeline, func()) {
		var err error
		j, err = journal.Open(journal.Options{Dir: dir, Declaration: journal.Declaration{Sinks: []string{"a"}}, MaxDeadLetters: 20 << 10, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		committing := startTask("journal", j.Run, failed)
		settings := config.Default()
		settings.Delivery.Retry = config.Retry{Min: time.Millisecond, Max: 10 * time.Millisecond}
		set := &sinkSet{shared: &shared{}, cfg: &settings, routes: &routing{}}
		cfg = set.pipelineConfig(config.Sink{Name: "a"}, &configuredSink{name: "a", sink: sink}, nil, feed{journal: j})
		cfg.SettleInterval = time.Millisecond
		cursor, _, err := j.Cursor("a")
		if err != nil {
			t.Fatal(err)
		}
		pipeline := delivery.New("a", sink, "layout", sinkJournal{j, "a"}, cursor, cfg, slog.New(slog.DiscardHandler))
		delivering := startTask("sink a", pipeline.Run, failed)
		return pipeline, func() {
			delivering.stop()
			committing.stop()
			if err := j.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	pipeline, stop := run()
	body := make([]byte, 4<<10)
	if _, err := rand.Read(body); err != nil {
		t.Fatal(err)
	}
	add := func(from, to int) {
		for n := from; n < to; n++ {
			c := &event.Change{Type: event.Updated, Resource: event.Resource{Version: "v1", Resource: "pods"}, Name: "good", UID: "u", ResourceVersion: fmt.Sprint(n), After: body}
			if n%2 == 0 {
				c.Name = "bad"
			}
			if err := j.Append(t.Context(), event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(0, changes/3)
	waitUntil(t, "the bound is reached", func() bool { return j.CheckDeadLetterSpace() != nil })
	add(changes/3, changes)
	waitUntil(t, "the other lane is done", func() bool { return sink.accepted.Load() == changes/2 })
	if err := cfg.PublishDeadLetter(t.Context(), nil, ""); err == nil || !strings.Contains(err.Error(), "exporter deadletters retry or discard, with --all") {
		t.Errorf("%v does not say what to do", err)
	}
	stop()
	if s, err := TreatDeadLetters(t.Context(), dir, signals.Request{Kind: signals.DiscardDeadLetters, Sink: "a", All: true}, nil); err != nil || s.Count == 0 || s.Count > changes/6 {
		t.Fatalf("%d of %d discarded, %v", s.Count, changes/2, err)
	}
	pipeline, stop = run() // goes on with the rest
	waitUntil(t, "more dead letters", func() bool { return pipeline.Stats().DeadLetters > 0 })
	stop()
}

// waitUntil waits for a condition.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
