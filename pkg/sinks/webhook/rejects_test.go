package webhook

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// fakeJournal is a journal of n changes of as many objects, and counts stored dead letters.
type fakeJournal struct {
	n    uint64
	mu   sync.Mutex
	dead int
}

func (h *fakeJournal) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	if after >= h.n {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return []event.Record{{Offset: after + 1, Change: newPod("o"+string(rune('a'+after%26)), int(after+1))}}, nil
}

func (h *fakeJournal) Settle(_ context.Context, _ event.Cursor, dead []event.DeadLetter) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead += len(dead)
	return nil
}

// TestAReceiverThatAnswers400ToEverythingIsUnavailable: such a receiver is a TLS server that gets plain HTTP, or the wrong
// one. The history must not become dead letters.
func TestAReceiverThatAnswers400ToEverythingIsUnavailable(t *testing.T) {
	var wrong atomic.Bool
	wrong.Store(true)
	r := startReceiver(t, func(int64, *http.Request, []byte) (int, bool) {
		if wrong.Load() {
			return http.StatusBadRequest, false
		}
		return http.StatusAccepted, true
	})
	s := newTestSink(t, Config{URL: r.http.URL}, format.CloudEventsStructured)
	h := &fakeJournal{n: 300}
	p := delivery.New("hook", s, "", h, event.Cursor{}, delivery.Config{
		Retry: delivery.RetryConfig{Min: time.Millisecond, Max: 10 * time.Millisecond}, Workers: s.Concurrency(),
	}, slog.New(slog.DiscardHandler))
	p.Drain(h.n)
	done := make(chan error, 1)
	go func() { done <- p.Run(t.Context()) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(p.Stats().Condition.Cause, "every change is rejected") || r.requests.Load() < 50 {
		<-tick.C
	}
	wrong.Store(false)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s := p.Stats(); h.dead > 20 || s.Delivered+uint64(h.dead) != h.n {
		t.Errorf("%d dead letters, %d delivered of %d", h.dead, s.Delivered, h.n)
	}
}
