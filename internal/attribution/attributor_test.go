package attribution_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

var pods = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}

// process is one run of an attributor on a journal.
type process struct {
	*attribution.Attributor
	t        *testing.T
	journal  *journal.Journal
	failing  *failingJournal
	runEnded chan error // the error of Run
	shutDown func()
}

func startProcess(t *testing.T, dir string, limits attribution.Limits) *process {
	t.Helper()
	return startProcessFor(t, dir, limits, "pods")
}

// startProcessFor starts a process that selects one resource.
func startProcessFor(t *testing.T, dir string, limits attribution.Limits, selected string) *process {
	t.Helper()
	p, run := prepareProcess(t, dir, limits, selected)
	run()
	return p
}

// prepareProcess creates an attributor on a running journal. run starts the attributor.
func prepareProcess(t *testing.T, dir string, limits attribution.Limits, selected string) (p *process, run func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	j, err := journal.Open(journal.Options{Dir: dir, Declaration: journal.Declaration{Sinks: []string{attribution.Sink}, KeepEvidence: true}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	p = &process{t: t, journal: j, failing: &failingJournal{Journal: j}, runEnded: make(chan error, 1)}
	p.Attributor = attribution.New(attribution.Options{
		Limits: limits, Journal: p.failing, Cluster: "c", Selected: func(_, resource string) bool { return resource == selected }, Logger: log,
	})
	ctx, cancel := context.WithCancel(t.Context())
	journaling := make(chan error, 1)
	running, end := context.WithCancel(t.Context())
	go func() { journaling <- j.Run(running) }()
	run = func() { go func() { p.runEnded <- p.Run(ctx) }() }
	p.shutDown = func() {
		cancel()
		if err := <-p.runEnded; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		end()
		if err := errors.Join(<-journaling, j.Close()); err != nil {
			t.Error(err)
		}
	}
	return p, run
}

// appendChange journals a change of the object with this UID.
func (p *process) appendChange(typ event.Type, uid, version, previous string) {
	p.t.Helper()
	p.appendRecord(&event.Change{Type: typ, UID: uid, ResourceVersion: version, Previous: previous})
}

// appendRecord journals a change. The name of its object is the UID.
func (p *process) appendRecord(c *event.Change) {
	p.t.Helper()
	c.Cluster, c.Resource, c.Name, c.ObservedAt = "c", pods, c.UID, time.Now()
	err := p.journal.Append(p.t.Context(), event.Observation{Resource: pods, Scope: "pods", Changes: []*event.Change{c}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// awaitNoEvidence waits until no evidence is stored.
func (p *process) awaitNoEvidence() {
	p.t.Helper()
	p.awaitStats("no evidence is left", func(attribution.Stats) bool { return p.countEvidence() == 0 })
}

// countEvidence returns how many pieces of evidence are stored.
func (p *process) countEvidence() (n int) {
	p.t.Helper()
	if err := p.journal.ForEachEvidence(func(event.Evidence) error { n++; return nil }); err != nil {
		p.t.Fatal(err)
	}
	return n
}

// awaitStats waits until the numbers of the attributor meet a condition.
func (p *process) awaitStats(what string, met func(attribution.Stats) bool) {
	p.t.Helper()
	await.Condition(p.t, what, time.Minute, 10*time.Millisecond, func() string {
		if s := p.Stats(); !met(s) {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
}

// storeRequest stores an audit event of a write that was answered with this version just now.
func (p *process) storeRequest(user, verb string, code int, uid, version string) {
	p.t.Helper()
	p.storeRequestOf(time.Now(), user, verb, code, uid, version)
}

// storeRequestOf stores an audit event of a write that was answered with this version at a time.
func (p *process) storeRequestOf(done time.Time, user, verb string, code int, uid, version string) {
	p.t.Helper()
	replaces := ""
	if code != 201 {
		replaces = "1" // as the admission policy annotates it
	}
	err := p.StoreEvents(p.t.Context(), "origin", []audit.Event{{
		ID: user + uid + version, Stage: "ResponseComplete", Verb: verb, Code: code, Outcome: audit.Stored, User: user, Resource: "pods",
		Received: audit.Time(done.Add(-time.Second).UnixNano()), Done: audit.Time(done.UnixNano()), Replaces: replaces,
		Answer: audit.Object{UID: uid, ResourceVersion: version},
	}}, "", "")
	if err != nil {
		p.t.Fatal(err)
	}
}

// awaitRecord returns the first record of a type after an offset.
func (p *process) awaitRecord(typ event.Type, after uint64) event.Record {
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

// TestLagIsAConditionWithRemedy restarts the process while events are late: the next one knows it.
func TestLagIsAConditionWithRemedy(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Settle: time.Millisecond, Window: time.Hour, Bytes: 1 << 20}
	for _, when := range []string{"measured", "after a restart"} {
		p := startProcess(t, dir, limits)
		deadline := time.Now().Add(time.Minute)
		for i := 0; p.Stats().LagCondition.OK(); i++ {
			if when == "measured" { // events from before the start are not late until a moment after it
				p.storeRequestOf(time.Now().Add(-time.Minute), "ann", "patch", 200, "a", strconv.Itoa(i))
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: no condition", when)
			}
			time.Sleep(10 * time.Millisecond)
		}
		stats := p.Stats()
		for _, words := range []string{"raise audit.settle to ", "--audit-webhook-batch-max-wait"} {
			if !strings.Contains(stats.LagCondition.Remedy, words) {
				t.Errorf("%s: %+v", when, stats.LagCondition)
			}
		}
		if stats.Lag < limits.Settle || when == "measured" && stats.Late == 0 {
			t.Errorf("%s: lag %v, %d late", when, stats.Lag, stats.Late)
		}
		p.shutDown()
	}
}

// TestChangeBeforeFirstRunIsAttributed starts with an empty journal, as a first start does.
func TestChangeBeforeFirstRunIsAttributed(t *testing.T) {
	p, run := prepareProcess(t, t.TempDir(), attribution.Limits{Settle: time.Hour, Window: 2 * time.Hour, Bytes: 1 << 20}, "pods")
	p.appendChange(event.Added, "u1", "5", "")
	if err := p.journal.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	run()
	defer p.shutDown()
	p.storeRequest("ann", "create", 201, "u1", "5")
	r := p.awaitRecord(event.Attributed, 0).Change
	if r.ID() != "c/u1/5/attributed" || r.Attribution.Of != "c/u1/5/added" || r.Attribution.By.User != "ann" || r.Key() != "c/core/pods//u1" {
		t.Errorf("%s %s %+v", r.ID(), r.Key(), r.Attribution)
	}
}

// TestStoredEventsSurviveRestart stops between an event and its change, and between a change and its resolution.
func TestStoredEventsSurviveRestart(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Settle: time.Hour, Window: 2 * time.Hour, Bytes: 1 << 20}
	p := startProcess(t, dir, limits)
	p.storeRequest("ann", "patch", 200, "u1", "6") // it may have changed nothing, so it is not accepted before Settle
	p.appendChange(event.Updated, "u1", "6", "5")
	p.storeRequest("bob", "create", 201, "u2", "7")
	p.shutDown()
	limits.Settle = 0
	p = startProcess(t, dir, limits)
	p.appendChange(event.Added, "u2", "7", "")
	names := map[string]string{}
	for after := uint64(0); len(names) < 2; {
		r := p.awaitRecord(event.Attributed, after)
		after = r.Offset
		names[r.Change.UID] = r.Change.Attribution.By.User
	}
	if names["u1"] != "ann" || names["u2"] != "bob" {
		t.Errorf("named %v", names)
	}
	p.shutDown()
	p = startProcess(t, dir, limits)
	defer p.shutDown()
	if n := p.countEvidence(); n > 0 {
		t.Errorf("%d pieces of evidence are left", n)
	}
}

// TestAResolvedChangeIsNotResolvedAgain stops while an older change waits. The evidence of the newer one is used up, so that
// the next process would find another author, or none.
func TestAResolvedChangeIsNotResolvedAgain(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Settle: time.Hour, Window: 2 * time.Hour, Bytes: 1 << 20}
	p := startProcess(t, dir, limits)
	p.appendChange(event.Added, "u1", "5", "")
	p.appendChange(event.Added, "u2", "6", "")
	p.storeRequest("ann", "create", 201, "u2", "6")
	p.awaitRecord(event.Attributed, 0)
	p.shutDown()
	for _, uid := range []string{"u3", "u4"} { // as often as it is restarted
		p = startProcess(t, dir, limits)
		p.awaitStats("a change waits", func(s attribution.Stats) bool { return s.Pending > 0 })
		after := p.journal.Newest()
		p.appendChange(event.Added, uid, "7", "")
		p.storeRequest("bob", "create", 201, uid, "7")
		p.awaitRecord(event.Attributed, after)
		p.shutDown()
	}
	limits.Window = time.Millisecond
	p = startProcess(t, dir, limits)
	defer p.shutDown()
	p.awaitNoEvidence()
	p.awaitStats("all are resolved", func(s attribution.Stats) bool { return s.Pending == 0 && s.Unresolved[attribution.NoEvent] > 0 })
	if n := p.Stats().Unresolved[attribution.NoEvent]; n != 1 {
		t.Errorf("%d changes are unresolved, of which one waited", n)
	}
}

func TestSilenceIsReportedAsGap(t *testing.T) {
	p := startProcess(t, t.TempDir(), attribution.Limits{Window: time.Millisecond, Bytes: 1 << 20})
	defer p.shutDown()
	p.appendChange(event.Updated, "u1", "6", "5")
	p.awaitStats("the silence is reported", func(s attribution.Stats) bool { return !s.Condition.OK() })
	if text := p.Stats().Condition.Cause; !strings.Contains(text, "since the start") {
		t.Errorf("explanation %q", text)
	}
	p.storeRequest("ann", "create", 201, "other", "9")
	r := p.awaitRecord(event.AttributionGap, 0).Change
	if r.Gap.From == "" || r.Gap.To == "" || r.Resource != pods || r.Key() != "c/core/pods//" {
		t.Errorf("%+v %s", r.Gap, r.Key())
	}
	if n := p.Stats().Unresolved[attribution.NoEvent]; n != 1 {
		t.Errorf("%d unresolved", n)
	}
}

func TestEventsOfUnselectedResourcesAreDropped(t *testing.T) {
	p := startProcess(t, t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20})
	defer p.shutDown()
	err := p.StoreEvents(t.Context(), "o", []audit.Event{{Stage: "ResponseComplete", Verb: "create", Code: 201, Outcome: audit.Stored, Resource: "nodes", Answer: audit.Object{UID: "u", ResourceVersion: "1"}}}, "", "")
	if s := p.Stats(); err != nil || s.Events != 1 || s.Kept != 0 {
		t.Errorf("%+v %v", s, err)
	}
}

// TestDeleteRequesterSurvivesRestart marks an object in one run and releases it in the next.
func TestDeleteRequesterSurvivesRestart(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Settle: time.Second, Window: 2 * time.Hour, Bytes: 1 << 20}
	p := startProcess(t, dir, limits)
	p.appendRecord(&event.Change{Type: event.Updated, UID: "u1", ResourceVersion: "6", Previous: "5", Class: event.ClassDeleting})
	p.storeRequest("ann", "delete", 200, "u1", "6")
	marked := p.awaitRecord(event.Attributed, 0)
	p.shutDown()
	p = startProcess(t, dir, limits)
	defer p.shutDown()
	now := audit.Time(time.Now().UnixNano())
	if err := p.StoreEvents(t.Context(), "origin", []audit.Event{{
		ID: "r", Stage: audit.Complete, Verb: "patch", Code: 200, Outcome: audit.Stored, User: "gc", Resource: "pods", Received: now - 1, Done: now,
		Answer: audit.Object{UID: "u1", ResourceVersion: "6", Deleting: true},
	}}, "", ""); err != nil {
		t.Fatal(err)
	}
	p.appendChange(event.Deleted, "u1", "7", "6")
	by := p.awaitRecord(event.Attributed, marked.Offset).Change.Attribution
	if by.By.User != "gc" || by.RequestedBy == nil || by.RequestedBy.User != "ann" {
		t.Errorf("%+v", by)
	}
	p.awaitNoEvidence()
}

// TestWaitRestartsAfterAbsence journals a change, is away for longer than Window, and gets the event afterwards, as from an
// API server that repeats it, from a file or from a topic.
func TestWaitRestartsAfterAbsence(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Settle: time.Second, Window: time.Minute, Bytes: 1 << 20}
	p := startProcess(t, dir, limits)
	c := &event.Change{Type: event.Added, Cluster: "c", Resource: pods, Name: "u1", UID: "u1", ResourceVersion: "5", ObservedAt: time.Now().Add(-time.Hour)}
	if err := p.journal.Append(t.Context(), event.Observation{Resource: pods, Scope: "pods", Changes: []*event.Change{c}}); err != nil {
		t.Fatal(err)
	}
	p.shutDown()
	p = startProcess(t, dir, limits)
	defer p.shutDown()
	p.awaitStats("a change waits", func(s attribution.Stats) bool { return s.Pending > 0 })
	p.storeRequest("ann", "create", 201, "u1", "5")
	if r := p.awaitRecord(event.Attributed, 0).Change; r.Attribution.By.User != "ann" {
		t.Errorf("%+v", r.Attribution)
	}
}

// TestEventFloodIsBounded stores far more events than the bound allows, none of which has a change. Memory and journal stay
// bounded, and evicted events are counted as lost.
func TestEventFloodIsBounded(t *testing.T) {
	const bound = 1 << 20
	p := startProcess(t, t.TempDir(), attribution.Limits{Settle: time.Hour, Window: time.Hour, Bytes: bound})
	defer p.shutDown()
	for n := range 100 {
		events := make([]audit.Event, 100)
		for i := range events {
			id := strconv.Itoa(n*len(events) + i)
			events[i] = audit.Event{ID: id, Stage: audit.Complete, Verb: "patch", Code: 200, Outcome: audit.Stored, User: "ann", Resource: "pods",
				Answer: audit.Object{UID: id, ResourceVersion: "1"}}
		}
		if err := p.StoreEvents(t.Context(), "api-"+strconv.Itoa(n), events, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitStats("all is bounded", func(s attribution.Stats) bool {
		return p.countEvidence() <= bound/2/300 && s.PendingBytes > 0 && s.PendingBytes <= bound && s.Lost > 8000
	})
}

// TestLossSurvivesRestart records a loss and stops before any resource is known. The next process emits the gap, and so it
// does for a loss without any further change.
func TestLossSurvivesRestart(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20}
	since := time.Now().Add(-time.Hour).UTC()
	p := startProcess(t, dir, limits)
	if err := p.RecordLoss(t.Context(), since, "the log was eaten"); err != nil {
		t.Fatal(err)
	}
	p.shutDown()
	p = startProcess(t, dir, limits)
	p.appendChange(event.Added, "u1", "5", "")
	first := p.awaitRecord(event.AttributionGap, 0)
	if gap := first.Change.Gap; gap.Reason != "the log was eaten" || gap.From != since.Format(time.RFC3339Nano) {
		t.Errorf("%+v", gap)
	}
	p.shutDown()
	p = startProcess(t, dir, limits)
	defer p.shutDown()
	if err := p.RecordLoss(t.Context(), time.Time{}, "the log was eaten again"); err != nil {
		t.Fatal(err)
	}
	again := p.awaitRecord(event.AttributionGap, first.Offset)
	if again.Change.Gap.Reason != "the log was eaten again" || again.Change.Resource != pods || again.Change.Cluster != "c" {
		t.Errorf("%+v", again.Change)
	}
	p.awaitNoEvidence()
}

// TestLossesOfOneReasonAreReportedOncePerMinute records a loss again and again, as for an API server that sends malformed
// bodies.
func TestLossesOfOneReasonAreReportedOncePerMinute(t *testing.T) {
	p := startProcess(t, t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20})
	defer p.shutDown()
	p.appendChange(event.Added, "u1", "5", "")
	lose := func(reason string) {
		if err := p.RecordLoss(t.Context(), time.Time{}, reason); err != nil {
			t.Fatal(err)
		}
	}
	lose("this")
	first := p.awaitRecord(event.AttributionGap, 0)
	for range 100 {
		lose("this")
	}
	lose("that")
	if next := p.awaitRecord(event.AttributionGap, first.Offset).Change.Gap; next.Reason != "that" {
		t.Errorf("%+v", next)
	}
	if kept := p.countEvidence(); kept != 1 {
		t.Errorf("%d losses are stored until they are emitted", kept)
	}
}

// TestRemovedRuleLeavesNoEvidence stops with a change and an event that wait, and with an event without a change. It
// continues with rules that do not select their resource.
func TestRemovedRuleLeavesNoEvidence(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Settle: time.Hour, Window: 2 * time.Hour, Bytes: 1 << 20}
	p := startProcess(t, dir, limits)
	p.storeRequest("ann", "patch", 200, "u1", "6")
	p.appendChange(event.Updated, "u1", "6", "5")
	p.storeRequest("bob", "create", 201, "u2", "7")
	p.shutDown()
	limits.Settle = 0
	p = startProcessFor(t, dir, limits, "services")
	if r := p.awaitRecord(event.Attributed, 0).Change; r.Attribution.By.User != "ann" {
		t.Errorf("%+v", r.Attribution)
	}
	p.storeRequest("eve", "create", 201, "u3", "8")
	if s := p.Stats(); s.Kept != 0 || s.Pending != 0 {
		t.Errorf("%+v", s)
	}
	p.shutDown()
	limits.Window = time.Millisecond
	p = startProcessFor(t, dir, limits, "services")
	defer p.shutDown()
	p.awaitNoEvidence()
}

// TestEventsWithoutAnswerNameNoAuthor lowers the audit level of a resource from RequestResponse to Metadata while a change
// waits. The event with an answer names its author. The one without names none, and does not hide that a change has no
// event.
func TestEventsWithoutAnswerNameNoAuthor(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Settle: time.Second, Window: time.Hour, Bytes: 1 << 20}
	p := startProcess(t, dir, limits)
	p.appendChange(event.Updated, "u1", "6", "5")
	p.storeRequest("ann", "patch", 200, "u1", "6")
	p.appendChange(event.Updated, "u1", "7", "6")
	p.storeRequest("bob", "patch", 200, "", "") // without an answer
	r := p.awaitRecord(event.Attributed, 0).Change
	if r.ResourceVersion != "6" || r.Attribution.By.User != "ann" {
		t.Errorf("%+v", r)
	}
	p.shutDown()
	limits.Settle, limits.Window = 0, time.Millisecond
	p = startProcess(t, dir, limits)
	defer p.shutDown()
	p.awaitStats("a change is left without an event", func(s attribution.Stats) bool { return s.Unresolved[attribution.NoEvent] > 0 })
	if s := p.Stats(); s.Attributed != 0 || s.Pending != 0 {
		t.Errorf("%+v", s)
	}
	p.awaitNoEvidence()
}
