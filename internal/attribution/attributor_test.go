package attribution_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
)

var pods = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}

// process is one run of an attributor on a journal.
type process struct {
	*attribution.Attributor
	t       *testing.T
	journal *journal.Journal
	stop    func()
}

func start(t *testing.T, dir string, limits attribution.Limits) *process {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	j, err := journal.Open(journal.Options{Dir: dir, Sinks: []string{attribution.Sink}, Evidence: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, journal: j, Attributor: attribution.New(attribution.Options{
		Limits: limits, Journal: j, Selected: func(_, resource string) bool { return resource == "pods" }, Logger: log,
	})}
	ctx, cancel := context.WithCancel(t.Context())
	journaling, naming := make(chan error, 1), make(chan error, 1)
	running, end := context.WithCancel(t.Context())
	go func() { journaling <- j.Run(running) }()
	go func() { naming <- p.Run(ctx) }()
	p.stop = func() {
		cancel()
		if err := <-naming; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		end()
		if err := errors.Join(<-journaling, j.Close()); err != nil {
			t.Error(err)
		}
	}
	return p
}

// change journals a change of an object.
func (p *process) change(typ event.Type, uid, version, previous string) {
	p.t.Helper()
	err := p.journal.Append(p.t.Context(), event.Observation{Resource: pods, Scope: "pods", Changes: []*event.Change{{
		Type: typ, Cluster: "c", Resource: pods, Name: uid, UID: uid, ResourceVersion: version, Previous: previous, ObservedAt: time.Now(),
	}}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// request hands over an audit event of a write that was answered with a version.
func (p *process) request(user, verb string, code int, uid, version string) {
	p.t.Helper()
	now := audit.Time(time.Now().Add(-time.Second).UnixNano())
	err := p.Take(p.t.Context(), "origin", []audit.Event{{
		ID: user + uid + version, Stage: "ResponseComplete", Verb: verb, Code: code, User: user, Resource: "pods", Received: now, Done: now + 1,
		Answer: audit.Object{UID: uid, ResourceVersion: version},
	}}, "", "")
	if err != nil {
		p.t.Fatal(err)
	}
}

// await returns the first record of a type behind an offset.
func (p *process) await(typ event.Type, after uint64) event.Record {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	for {
		records, err := p.journal.Read(ctx, after)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, r := range records {
			if after = r.Offset; r.Change.Type == typ {
				return r
			}
		}
	}
}

func TestAnAuthorIsNamedInTheStream(t *testing.T) {
	p := start(t, t.TempDir(), attribution.Limits{Settle: time.Hour, Window: 2 * time.Hour, Bytes: 1 << 20})
	defer p.stop()
	p.request("ann", "create", 201, "u1", "5")
	p.change(event.Added, "u1", "5", "")
	r := p.await(event.Attributed, 0).Change
	if r.ID() != "c/u1/5/attributed" || r.Attribution.Of != "c/u1/5/added" || r.Attribution.By.User != "ann" || r.Key() != "core/pods//u1" {
		t.Errorf("%s %s %+v", r.ID(), r.Key(), r.Attribution)
	}
}

// TestWhatWasTakenOutlivesTheProcess stops between the event and its change, and between the change and the conclusion.
func TestWhatWasTakenOutlivesTheProcess(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Settle: time.Hour, Window: 2 * time.Hour, Bytes: 1 << 20}
	p := start(t, dir, limits)
	p.request("ann", "patch", 200, "u1", "6") // may be of a write that changed nothing: not named before settle
	p.change(event.Updated, "u1", "6", "5")
	p.request("bob", "create", 201, "u2", "7")
	p.stop()
	limits.Settle = 0
	p = start(t, dir, limits)
	p.change(event.Added, "u2", "7", "")
	names := map[string]string{}
	for after := uint64(0); len(names) < 2; {
		r := p.await(event.Attributed, after)
		after = r.Offset
		names[r.Change.UID] = r.Change.Attribution.By.User
	}
	if names["u1"] != "ann" || names["u2"] != "bob" {
		t.Errorf("named %v", names)
	}
	p.stop()
	p = start(t, dir, limits)
	defer p.stop()
	err := p.journal.Evidence(func(e event.Evidence) error { t.Errorf("evidence %d is left", e.Number); return nil })
	if err != nil {
		t.Error(err)
	}
}

func TestSilenceIsSaidWhenItEnds(t *testing.T) {
	p := start(t, t.TempDir(), attribution.Limits{Window: time.Millisecond, Bytes: 1 << 20})
	defer p.stop()
	p.change(event.Updated, "u1", "6", "5")
	for deadline := time.Now().Add(time.Minute); p.Stats().Condition.OK(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody says that no audit events come")
		}
	}
	p.request("ann", "create", 201, "other", "9")
	r := p.await(event.AttributionGap, 0).Change
	if r.Gap.From == "" || r.Gap.To == "" || r.Resource != pods || r.Key() != "core/pods//" {
		t.Errorf("%+v %s", r.Gap, r.Key())
	}
	if n := p.Stats().Unresolved[attribution.NoEvent]; n != 1 {
		t.Errorf("%d unresolved", n)
	}
}

func TestWhatNobodySelectsIsNotKept(t *testing.T) {
	p := start(t, t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20})
	defer p.stop()
	err := p.Take(t.Context(), "o", []audit.Event{{Stage: "ResponseComplete", Verb: "create", Code: 201, Resource: "nodes", Answer: audit.Object{UID: "u", ResourceVersion: "1"}}}, "", "")
	if s := p.Stats(); err != nil || s.Events != 1 || s.Kept != 0 {
		t.Errorf("%+v %v", s, err)
	}
}
