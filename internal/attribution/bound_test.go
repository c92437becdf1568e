package attribution_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestEventsAreStoredWhileJournalIsFull fills the journal with changes that wait for their authors while a sink is away.
// Events are still stored, and no change waits for its author any longer.
func TestEventsAreStoredWhileJournalIsFull(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Declaration: journal.Declaration{Sinks: []string{attribution.Sink, "away"}, KeepEvidence: true}, MaxBytes: 1 << 20, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, journal: j, Attributor: attribution.New(attribution.Options{
		Limits: attribution.Limits{Settle: time.Hour, Window: 2 * time.Hour, Bytes: 1 << 20}, Journal: j, Cluster: "c", Logger: log,
		Selected:       func(string, string) bool { return true },
		JournalCrowded: func() bool { s := j.Stat(); return s.RetainedBytes > s.MaxBytes/2 },
	})}
	running, end := context.WithCancel(t.Context())
	defer end()
	naming, stopNaming := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- j.Run(running) }()
	go func() { ended <- p.Run(naming) }()
	n := fillJournal(t, j)
	p.awaitStats("none waits", func(s attribution.Stats) bool { return s.Unresolved[attribution.Evicted] >= uint64(n) })
	p.storeRequest("ann", "create", 201, "another", "9")
	if s := p.Stats(); s.Kept != 1 || s.Pending != 0 {
		t.Errorf("%+v", s)
	}
	stopNaming()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	end()
	if err := errors.Join(<-ended, j.Close()); err != nil {
		t.Error(err)
	}
}

// fillJournal appends changes until the journal is blocked, and returns their number.
func fillJournal(t *testing.T, j *journal.Journal) (n int) {
	t.Helper()
	trying, stop := context.WithCancel(t.Context())
	full := make(chan struct{})
	go func() {
		defer close(full)
		for j.Stat().Blocked.Cause == "" && trying.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		stop() // cancel the blocked Append
	}()
	defer func() { stop(); <-full }()
	for {
		body := make([]byte, 50<<10)
		_, _ = rand.Read(body)
		uid := strconv.Itoa(n + 1)
		c := &event.Change{Type: event.Updated, Cluster: "c", Resource: pods, Name: uid, UID: uid, ResourceVersion: uid, Previous: "0", ObservedAt: time.Now(),
			After: []byte(`{"metadata":{"name":"` + uid + `"},"data":"` + hex.EncodeToString(body) + `"}`)}
		err := j.Append(trying, event.Observation{Resource: pods, Scope: "pods", Changes: []*event.Change{c}})
		switch {
		case err == nil:
			n++ // the canceled one may be included
		case trying.Err() == nil:
			t.Fatal(err)
		}
		if trying.Err() != nil {
			return n
		}
	}
}
