package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

const (
	// signalTimeout bounds how long a signal waits for the journal and the replicated state, and how long a pause waits for
	// what is in flight.
	signalTimeout = 10 * time.Second
	// signalInterval is how often pauses are looked at that end by themselves.
	signalInterval = time.Second
)

// signalControl stores signals in the memory and puts them in force. Its switches outlive a composition, so that a sink that
// is paused delivers nothing during a reload either, and a paused rule emits nothing. Safe for concurrent use.
type signalControl struct {
	log      *slog.Logger
	journal  *journal.Journal
	replica  *replica // nil without a replicated state
	registry *signals.Registry

	applying sync.Mutex // held from a look at the signals until the switches follow them; taken before mu

	mu       sync.Mutex
	switches map[signals.Subject]*delivery.PauseSwitch
}

func newSignalControl(j *journal.Journal, r *replica, log *slog.Logger) (*signalControl, error) {
	c := &signalControl{log: log, journal: j, replica: r, switches: map[signals.Subject]*delivery.PauseSwitch{}}
	c.registry = signals.NewRegistry(c.storeBook)
	return c, c.load()
}

// storeBook stores the signals. The state comes first: a journal that has a signal which the state lacks is not believed
// after a failover.
func (c *signalControl) storeBook(ctx context.Context, entries map[uint64][]byte) error {
	if c.replica != nil {
		if err := c.replica.writer.StoreSignals(ctx, entries); err != nil {
			return err
		}
	}
	return c.journal.StoreSignals(ctx, entries)
}

// load loads the signals of the journal and, once this process has taken it over, of the replicated state.
func (c *signalControl) load() error {
	inJournal, err := c.journal.Signals()
	if err != nil {
		return err
	}
	stored := []map[uint64][]byte{inJournal}
	if c.replica != nil && c.replica.failover != nil {
		inState, err := c.replica.writer.Signals()
		if err != nil {
			return err
		}
		stored = append(stored, inState)
	}
	if err := c.registry.Load(stored...); err != nil {
		return err
	}
	for _, s := range c.registry.List() { // that an earlier process has not finished
		if s.State == signals.Active && !s.Kind.GoesOn() && !c.registry.IsExecuting(s.ID) {
			ended := s.End(signals.Aborted, time.Now(), 0, "the exporter ended meanwhile; what it had done is done")
			c.registry.Update(func(b *signals.Book) { b.PutIfActive(ended) })
		}
	}
	c.applyPauses(time.Now())
	return nil
}

// followRenames has the signals of a sink that was renamed continue under its new name: the journal recognizes it by its
// destination. It is called before anything is delivered to the sinks.
func (c *signalControl) followRenames(ctx context.Context, sinks []config.Sink) error {
	isConfigured, renamed := map[string]bool{}, map[string]string{}
	for _, s := range sinks {
		isConfigured[s.Name] = true
	}
	for _, s := range sinks {
		before, err := c.journal.FormerName(s.Name)
		if err != nil {
			return err
		}
		if before != "" && !isConfigured[before] {
			renamed[before] = s.Name
		}
	}
	for _, s := range c.registry.List() {
		if now, ok := renamed[s.Sink]; ok && s.State == signals.Active {
			c.log.Info("a signal continues for a sink that is renamed", "sink", now, "formerly", s.Sink, "signal", s.ID)
			s.Sink = now
			c.registry.Update(func(b *signals.Book) { b.PutIfActive(s) })
		}
	}
	for _, r := range c.journal.Replays() {
		if now, ok := renamed[r.Sink]; ok {
			if err := c.journal.RenameReplaySink(ctx, r.ID, now); err != nil {
				return err
			}
		}
	}
	c.applyPauses(time.Now())
	return nil
}

func (c *signalControl) pauseSwitch(of signals.Subject) *delivery.PauseSwitch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.switches[of] == nil {
		c.switches[of] = delivery.NewPauseSwitch()
	}
	return c.switches[of]
}

// applyPauses brings the switches into accord with the signals, and ends the pauses that are over.
func (c *signalControl) applyPauses(now time.Time) {
	c.applying.Lock()
	defer c.applying.Unlock()
	since := map[signals.Subject]time.Time{}
	for _, s := range c.registry.List() {
		switch {
		case s.Kind != signals.Pause || s.State != signals.Active:
		case s.IsDue(now):
			lasted := s.Until.Sub(s.Since).Round(time.Second)
			ended := s.End(signals.Done, now, c.waitingFor(s.Sink), fmt.Sprintf("resumed after %v, as it asked for", lasted))
			c.registry.Update(func(b *signals.Book) { b.PutIfActive(ended) })
			of := s.Subject()
			c.log.Info("the pause of a "+of.Kind()+" has ended", of.Kind(), of.Name(), "signal", s.ID, "lasted", lasted)
		default:
			since[s.Subject()] = s.Since
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, at := range since {
		if c.switches[of] == nil {
			c.switches[of] = delivery.NewPauseSwitch()
		}
		c.switches[of].Pause(at)
	}
	for of, s := range c.switches {
		if since[of].IsZero() {
			s.Resume()
		}
	}
}

// run ends the pauses that are over, and stores what could not be stored, until ctx ends. Only an active process writes.
func (c *signalControl) run(ctx context.Context, isActive func() bool) error {
	for ratelimit.Sleep(ctx, signalInterval) == nil {
		if !isActive() {
			continue
		}
		c.applyPauses(time.Now())
		limited, cancel := context.WithTimeout(ctx, signalTimeout)
		if err := c.registry.SaveUnsaved(limited); err != nil {
			c.log.Debug("signals are not stored yet", "error", err)
		}
		cancel()
	}
	return nil
}

func (c *signalControl) waitingFor(sink string) uint64 {
	cursor, known, err := c.journal.Cursor(sink)
	if err != nil || !known {
		return 0
	}
	newest := c.journal.Newest()
	return newest - min(newest, max(cursor.Low, c.journal.Oldest()-1))
}

func (c *signalControl) submit(ctx context.Context, r signals.Request, cfg *config.Config) (signals.Signal, error) {
	s := r.New(time.Now())
	of := s.Subject()
	paused, isPaused := c.registry.ActivePause(of)
	var refusal string
	if r.Rule != "" {
		refusal = refusalOfRule(r, isPaused, cfg.Resources)
	} else {
		refusal = c.refusalOf(r, isPaused, cfg.Sinks)
	}
	if refusal != "" {
		return c.registry.Refuse(ctx, s, refusal), nil
	}
	waiting := c.waitingFor(s.Sink)
	switch r.Kind {
	case signals.RetryDeadLetters, signals.DiscardDeadLetters:
		return c.treatDeadLetters(ctx, s, r)
	case signals.Pause:
		s.Count = waiting
		if err := c.registry.Commit(ctx, s.ID, func(b *signals.Book) { b.Put(s) }); err != nil {
			return s, err
		}
		c.applyPauses(time.Now())
		attrs := []any{of.Kind(), of.Name(), "code", string(c.pausedStatus(of).Code), "signal", s.ID}
		if !s.Until.IsZero() {
			attrs = append(attrs, "until", s.Until)
		}
		c.log.Warn("a "+of.Kind()+" is paused", attrs...)
		if err := c.pauseSwitch(of).AwaitQuiet(ctx); err != nil {
			left := "a request that was sent before is not answered yet"
			if of.Rule != "" {
				left = "what was read before is not in the journal yet"
			}
			return s, errors.New("the pause is in force, and " + left)
		}
		return s, nil
	default: // resume
	}
	switch {
	case !isPaused:
		s = s.End(signals.Nothing, time.Now(), 0, "the "+of.Kind()+" is not paused")
	case s.Rule != "":
		s = s.End(signals.Done, time.Now(), 0, fmt.Sprintf("paused for %v: it goes on where it was, or with a gap where the API server "+
			"no longer has the history", s.Created.Sub(paused.Since).Round(time.Second)))
	default:
		s = s.End(signals.Done, time.Now(), waiting, fmt.Sprintf("%d changes waited", waiting))
	}
	err := c.registry.Commit(ctx, s.ID, func(b *signals.Book) {
		if paused, isPaused = b.ActivePause(of); isPaused {
			b.Put(paused.End(signals.Done, s.Created, waiting, "resumed by signal "+s.ID))
		}
		b.Put(s)
	})
	if err == nil && isPaused {
		c.applyPauses(time.Now())
		c.log.Info("a "+of.Kind()+" is resumed", of.Kind(), of.Name(), "signal", s.ID, "changes", waiting)
	}
	return s, err
}

// refusalOfRule returns why a request that names a rule is refused; "" if it is not.
func refusalOfRule(r signals.Request, isPaused bool, rules []config.Resource) string {
	var names []string
	for _, rule := range rules {
		if rule.Name != "" {
			names = append(names, rule.Name)
		}
	}
	switch {
	case isPaused || slices.Contains(names, r.Rule):
		return ""
	case len(names) == 0:
		return fmt.Sprintf("no rule %q is configured: none has a name; give it one (resources[].name)", r.Rule)
	}
	return fmt.Sprintf("no rule %q is configured; those with a name are: %s", r.Rule, strings.Join(names, ", "))
}

// refusalOf returns why a request is refused; "" if it is not.
func (c *signalControl) refusalOf(r signals.Request, isPaused bool, sinks []config.Sink) string {
	names := make([]string, len(sinks))
	for i, s := range sinks {
		names[i] = s.Name
	}
	isLetters := r.Kind == signals.DiscardDeadLetters || r.Kind == signals.RetryDeadLetters
	isConfigured := slices.Contains(names, r.Sink)
	switch {
	case isLetters:
		return refusalOfLetters(c.journal, r, names)
	case !isConfigured && (!isPaused || r.Kind == signals.Snapshot || r.Kind == signals.Replay):
		return describeNotConfigured(r.Sink, names)
	}
	return ""
}

// treatDeadLetters retries or discards dead letters. What a signal has done when the process ends is durable, and the rest
// is still there: load then ends it.
func (c *signalControl) treatDeadLetters(ctx context.Context, s signals.Signal, r signals.Request) (signals.Signal, error) {
	if err := c.registry.Commit(ctx, s.ID, func(b *signals.Book) { b.Put(s) }); err != nil {
		return s, err
	}
	s, err := treatLetters(context.WithoutCancel(ctx), c.journal, s, r) // each write is bounded; a journal that ends ends them
	c.registry.Update(func(b *signals.Book) { b.Put(s) })
	c.log.Info("dead letters are treated as a signal asks", "sink", s.Sink, "signal", s.ID, "result", s.Result)
	return s, err
}

// pausedStatus returns the condition of a sink or a rule that is paused; OK if it is not.
func (c *signalControl) pausedStatus(of signals.Subject) condition.Status {
	if s, ok := c.registry.ActivePause(of); ok && !c.pauseSwitch(of).PausedSince().IsZero() {
		return s.PausedStatus(c.waitingFor(of.Sink))
	}
	return condition.Status{Component: of.Component()}
}

type signalHandler struct{ current func() *composition }

// Submit implements [signals.Handler].
func (h signalHandler) Submit(ctx context.Context, r signals.Request) (signals.Signal, error) {
	c := h.current()
	if !c.open.Load() {
		return signals.Signal{}, notActive(c.replica)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalTimeout) // a client that goes away changes nothing
	defer cancel()
	return c.signals.registry.Execute(ctx, r, func(r signals.Request) (signals.Signal, error) {
		switch r.Kind {
		case signals.Snapshot:
			return c.snapshots.submit(ctx, r)
		case signals.Watermark:
			return c.snapshots.emitWatermarks(r), nil
		case signals.Replay:
			return c.replays.submit(ctx, r)
		case signals.Cancel:
			return c.snapshots.cancel(ctx, r)
		default:
			return c.signals.submit(ctx, r, c.cfg)
		}
	})
}

// List implements [signals.Handler]. What a standby has of an earlier term is no longer true.
func (h signalHandler) List() ([]signals.Signal, error) {
	c := h.current()
	if !c.replica.isActive() {
		return nil, notActive(c.replica)
	}
	return c.signals.registry.List(), nil
}

// Letters implements [signals.Handler].
func (h signalHandler) Letters(sink string, offset, after uint64) ([]json.RawMessage, error) {
	c := h.current()
	if !c.open.Load() {
		return nil, notActive(c.replica)
	}
	letters, err := ReadDeadLetters(c.signals.journal, sink, offset, after)
	if refusal := c.signals.refusalOf(signals.Request{Sink: sink}, false, c.cfg.Sinks); err == nil && len(letters) == 0 && after == 0 && refusal != "" {
		return nil, &signals.InvalidError{Reason: refusal}
	}
	return letters, err
}

// notActive returns why a process has no signals, and names the one that has.
func notActive(r *replica) error {
	s := r.replicaStatus()
	if s == nil {
		return &signals.NotActiveError{Reason: "this exporter is not active yet; try again"}
	}
	reason := fmt.Sprintf("this exporter is %s and has no signals; ask the active one", s.Role)
	if s.Holder != "" && s.Holder != s.Identity {
		reason += ", " + s.Holder
	}
	return &signals.NotActiveError{Reason: reason}
}

// startSignals answers signals at the socket of the journal. Without a socket the exporter runs all the same, and takes no
// signals.
func (a *app) startSignals() {
	l, err := signals.Listen(a.activeConfig().Journal.Dir)
	if err != nil {
		a.log.Warn("no signals are taken, because their socket cannot be made; everything else works", "error", err)
		return
	}
	a.signalTask = startTask("signals", func(ctx context.Context) error {
		return signals.Serve(ctx, l, signalHandler{a.terms.current.Load}, a.log)
	}, a.failure.reportError)
}
