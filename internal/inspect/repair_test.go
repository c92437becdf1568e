package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/internal/verify"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// signalTaker answers signals for snapshots at a real socket, as an exporter does that needs no time for them.
type signalTaker struct {
	t   *testing.T
	dir string

	mu    sync.Mutex
	kept  []signals.Signal
	taken []signals.Request // those that made a signal

	lose   int // answers that are lost, after the signal is stored
	refuse string
	state  signals.State // of each signal
	stop   func()
}

func newSignalTaker(t *testing.T) *signalTaker {
	s := &signalTaker{t: t, dir: t.TempDir(), state: signals.Done}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

// start listens, as an exporter does that is started.
func (s *signalTaker) start() {
	l, err := signals.Listen(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- signals.Serve(ctx, cuttingListener{l, s}, s, slog.New(slog.DiscardHandler)) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
}

// cuttingListener cuts connections, so that answers are lost.
type cuttingListener struct {
	net.Listener
	s *signalTaker
}

func (l cuttingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return cuttingConn{conn, l.s}, err
}

type cuttingConn struct {
	net.Conn
	s *signalTaker
}

func (c cuttingConn) Write(b []byte) (int, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.lose > 0 && len(c.s.kept) > 0 {
		c.s.lose--
		return 0, errors.Join(net.ErrClosed, c.Conn.Close())
	}
	return c.Conn.Write(b)
}

// Submit implements [signals.Handler].
func (s *signalTaker) Submit(_ context.Context, r signals.Request) (signals.Signal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.kept {
		if o.ID == r.ID {
			return o, nil
		}
	}
	signal := r.New(time.Now())
	if s.refuse != "" {
		signal = signal.End(signals.Refused, time.Now(), 0, s.refuse)
		s.refuse = ""
		return signal, nil
	}
	s.taken = append(s.taken, r)
	s.kept = append(s.kept, signal.End(s.state, time.Now(), uint64(max(len(r.Objects), 7)), "as it is"))
	if s.state == signals.Active {
		s.kept[len(s.kept)-1] = signal
	}
	return signal, nil
}

// Letters implements [signals.Handler].
func (s *signalTaker) Letters(string, uint64, uint64) ([]json.RawMessage, error) { return nil, nil }

// List implements [signals.Handler].
func (s *signalTaker) List() ([]signals.Signal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kept), nil
}

// repair repairs by a client of the taker.
func (s *signalTaker) repair(found ...verify.Differing) (*verify.Repair, error) {
	client, err := signals.NewClient(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	r := &repairer{client: client, sink: "main", wait: 2 * time.Second, progress: func(string) {}, result: &verify.Repair{}}
	err = r.repair(s.t.Context(), found)
	return r.result, err
}

var configMaps = selection.Scope{Resource: event.Resource{Version: "v1", Resource: "configmaps"}, Namespaced: true}

// numbered returns so many keys of objects.
func numbered(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("ns/o-", i))
	}
	return keys
}

// TestRepairNamesWhatDiffersInBoundedSignals, a whole resource without names, and nothing that no signal can name. Lost
// answers, and an exporter that is away for a while, make no signal twice.
func TestRepairNamesWhatDiffersInBoundedSignals(t *testing.T) {
	s := newSignalTaker(t)
	s.lose = 2
	got, err := s.repair(
		verify.Differing{Scope: configMaps, Existing: numbered(2*signals.MaxEntries + 1), Absent: []string{"ns/gone", "clusterwide", "ns/a/b"}},
		verify.Differing{Scope: configMaps, Whole: true, Absent: []string{"ns/gone"}},
		verify.Differing{Scope: configMaps, Existing: numbered(1), Reason: "it would not help"},
	)
	if err != nil || len(got.Resources) != 3 || s.lose > 0 {
		t.Fatalf("%v, %+v, %d answers are left", err, got, s.lose)
	}
	named, whole, none := got.Resources[0], got.Resources[1], got.Resources[2]
	if named.Existing != 2*signals.MaxEntries+1 || named.Absent != 1 || len(named.Signals) != 4 || !strings.HasPrefix(named.Reason, "2 records have keys") {
		t.Errorf("named: %+v", named)
	}
	if !whole.Whole || whole.Existing != 7 || whole.Absent != 1 || len(whole.Signals) != 2 {
		t.Errorf("whole: %+v", whole)
	}
	if none.Existing != 0 || len(none.Signals) != 0 || none.Reason != "it would not help" {
		t.Errorf("none: %+v", none)
	}
	for i, want := range []int{signals.MaxEntries, signals.MaxEntries, 1, 1, 0, 1} {
		if r := s.taken[i]; len(r.Objects) != want || r.Sink != "main" || r.Kind != signals.Snapshot || !slices.Equal(r.Select, []string{"configmaps"}) {
			t.Errorf("signal %d: %+v", i, r)
		}
	}
	if len(s.taken) != 6 {
		t.Errorf("%d signals were taken", len(s.taken))
	}
}

// TestRepairThatIsNotCarriedOutHasTheReason, and what was done before.
func TestRepairThatIsNotCarriedOutHasTheReason(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*signalTaker)
		reason string
	}{
		"refused":     {func(s *signalTaker) { s.refuse = "the sink already waits for the snapshot other" }, "is refused: the sink already waits"},
		"aborted":     {func(s *signalTaker) { s.state = signals.Aborted }, "is aborted: as it is"},
		"active":      {func(s *signalTaker) { s.state = signals.Active }, "exporter signal cancel"},
		"no exporter": {func(s *signalTaker) { s.stop() }, "no exporter answers at"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSignalTaker(t)
			c.change(s)
			got, err := s.repair(verify.Differing{Scope: configMaps, Existing: numbered(1)})
			if err == nil || !strings.Contains(err.Error(), c.reason) || len(got.Resources[0].Signals) != 0 {
				t.Fatalf("%v, %+v", err, got)
			}
		})
	}
}

// TestVerificationBehindARepairDecides the exit code.
func TestVerificationBehindARepairDecides(t *testing.T) {
	result := func(o verify.Outcome, r *verify.Repair) *verify.Result { return &verify.Result{Outcome: o, Repair: r} }
	for _, c := range []struct {
		r    *verify.Result
		code exit.Code
	}{
		{result(verify.OutcomeDifferent, nil), exit.Different},
		{result(verify.OutcomeDifferent, &verify.Repair{}), exit.Different},
		{result(verify.OutcomeDifferent, &verify.Repair{Reason: "no exporter"}), exit.Environment},
		{result(verify.OutcomeDifferent, &verify.Repair{After: result(verify.OutcomeEqual, nil)}), exit.OK},
		{result(verify.OutcomeDifferent, &verify.Repair{After: result(verify.OutcomeDifferent, nil)}), exit.Different},
		{result(verify.OutcomeDifferent, &verify.Repair{After: result(verify.OutcomeNotVerified, nil)}), exit.Environment},
	} {
		if code, _ := exit.CodeOf(VerifyError(c.r)); code != c.code {
			t.Errorf("%+v: exit code %d, want %d", c.r, code, c.code)
		}
	}
}
