package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// requestedReplays executes the signals that ask for replays. The journal has how far each is; one that it does not have was
// lost with what it would read. Safe for concurrent use.
type requestedReplays struct {
	*signalControl
	sinks []config.Sink // the configured ones

	mu      sync.Mutex
	awaited map[string]uint64 // up to where what waits for its delivery was appended, by ID of the signal
}

func newRequestedReplays(c *signalControl, sinks []config.Sink) *requestedReplays {
	return &requestedReplays{signalControl: c, sinks: sinks, awaited: map[string]uint64{}}
}

// lostReplay is the reason of the end of a replay that the journal does not have.
const lostReplay = "another exporter has taken over, or the journal was replaced: what was to be emitted again is gone"

// submit stores a signal. The journal is first, so that an active signal without a replay is one that was lost.
func (s *requestedReplays) submit(ctx context.Context, r signals.Request) (signals.Signal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	signal := r.New(time.Now())
	replay := journal.Replay{ID: signal.ID, Sink: signal.Sink, Since: r.From, Next: max(r.Offset, s.journal.Oldest()), Last: s.journal.Newest()}
	refusal, err := s.refusalOfReplay(ctx, r)
	switch {
	case err != nil:
		return signal, err
	case refusal != "":
		return s.registry.Refuse(ctx, signal, refusal), nil
	case replay.Next > replay.Last:
		signal = signal.End(signals.Nothing, time.Now(), 0, "the journal keeps nothing from there on")
	default:
		signal.Result = describeReplay(replay)
		if err := s.journal.BeginReplay(ctx, replay); err != nil {
			return signal, err
		}
	}
	err = s.registry.Commit(ctx, signal.ID, func(b *signals.Book) { b.Put(signal) })
	if err == nil && signal.State == signals.Active {
		s.log.Info("a replay is requested by a signal", "sink", signal.Sink, "signal", signal.ID, "from", replay.Next, "to", replay.Last)
	}
	return signal, err
}

func describeReplay(r journal.Replay) string {
	if r.Since.IsZero() {
		return fmt.Sprintf("changes %d to %d follow, between live changes", r.Next, r.Last)
	}
	return fmt.Sprintf("changes since %s follow, up to offset %d, between live changes", r.Since.Format(time.RFC3339), r.Last)
}

func (s *requestedReplays) refusalOfReplay(ctx context.Context, r signals.Request) (string, error) {
	if refusal := s.refusalOf(r, false, s.sinks); refusal != "" {
		return refusal, nil
	}
	sink := s.sinks[slices.IndexFunc(s.sinks, func(o config.Sink) bool { return o.Name == r.Sink })]
	if holdsRows(sink) {
		return fmt.Sprintf("sink %q has rows, which the past would replace; exporter signal snapshot --all emits what exists", r.Sink), nil
	}
	for _, o := range s.registry.List() {
		if o.Kind == signals.Replay && o.State == signals.Active && o.Sink == r.Sink {
			return fmt.Sprintf("sink %q already gets the replay %s; exporter signal cancel %s ends it", r.Sink, o.ID, o.ID), nil
		}
	}
	oldest, exists, err := s.journal.OldestRecord(ctx)
	switch {
	case err != nil:
		return "", err
	case !exists && r.Offset <= s.journal.Newest():
		return "the journal keeps no change; exporter signal snapshot --all emits what exists", nil
	case r.Offset > s.journal.Newest()+1:
		return fmt.Sprintf("the newest change has the offset %d", s.journal.Newest()), nil
	case !exists || oldest.Offset == 1:
	case r.Offset > 0 && r.Offset < oldest.Offset, r.Offset == 0 && r.From.Before(oldest.Change.ObservedAt):
		return fmt.Sprintf("the journal keeps changes from offset %d on, observed at %s (journal.keep); ask for those, or emit what exists: "+
			"exporter signal snapshot --all", oldest.Offset, oldest.Change.ObservedAt.Format(time.RFC3339)), nil
	}
	return "", nil
}

// holdsRows reports whether a sink writes states of objects that take the place of the former ones.
func holdsRows(s config.Sink) bool {
	f, err := s.ParseFormat()
	return err == nil && !f.CanRepresent(&event.Change{Type: event.Replayed}) || s.NATS != nil && s.NATS.KeepsRows()
}

// cancelReplay appends the ends of a replay that is active. It returns false if the replay is ending anyway.
func (s *requestedReplays) cancelReplay(ctx context.Context, id, by string) (canceled bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	replay, found := s.findReplay(id)
	if signal, _ := s.registry.Find(id); !found || replay.State != "" || signal.Delivered {
		return false, nil
	}
	delete(s.awaited, id)
	replay.State, replay.Reason = string(signals.Aborted), "canceled by signal "+by
	return true, s.journal.EndReplay(ctx, replay)
}

func (s *requestedReplays) findReplay(id string) (journal.Replay, bool) {
	all := s.journal.Replays()
	i := slices.IndexFunc(all, func(r journal.Replay) bool { return r.ID == id })
	if i < 0 {
		return journal.Replay{}, false
	}
	return all[i], true
}

// run advances the replays until ctx ends.
func (s *requestedReplays) run(ctx context.Context) error {
	for pause := time.Duration(0); ratelimit.Sleep(ctx, pause) == nil; {
		limited, cancel := context.WithTimeout(ctx, signalTimeout)
		moved, err := s.advance(limited)
		cancel()
		switch {
		case err != nil:
			s.log.Debug("replays do not advance", "error", err)
			pause = signalInterval
		case moved:
			pause = 0
		case len(s.journal.Replays()) > 0:
			pause = snapshotPause
		default:
			pause = signalInterval
		}
	}
	return nil
}

// advance brings each replay a step further, and reports whether one has moved.
func (s *requestedReplays) advance(ctx context.Context) (moved bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, signal := range s.registry.List() {
		_, found := s.findReplay(signal.ID)
		if signal.Kind != signals.Replay || signal.State != signals.Active || found {
			continue
		}
		lost := journal.Replay{ID: signal.ID, Sink: signal.Sink, State: string(signals.Aborted), Reason: lostReplay}
		if signal.Delivered {
			lost.State, lost.Reason = string(signals.Done), ""
		}
		if err := s.journal.EndReplay(ctx, lost); err != nil {
			return moved, err
		}
	}
	for _, replay := range s.journal.Replays() {
		one, err := s.advanceReplay(ctx, replay)
		if err != nil {
			return moved, err
		}
		moved = moved || one
	}
	return moved, nil
}

// advanceReplay brings a replay a step further: it emits more, appends its end, or ends its signal once that is delivered.
func (s *requestedReplays) advanceReplay(ctx context.Context, r journal.Replay) (moved bool, err error) {
	signal, found := s.registry.Find(r.ID)
	if !found || signal.State != signals.Active { // that is stored, or the signal never was
		return true, s.removeEnded(ctx, r.ID)
	}
	cursor, _, err := s.journal.Cursor(r.Sink)
	if err != nil { // not declared
		records, _ := r.Total()
		return true, s.endSignal(ctx, r, signals.Aborted, uint64(records), "the sink was removed")
	}
	switch {
	case r.State != "":
		return s.awaitEnds(ctx, r, signal, cursor)
	case r.Next > r.Last:
		return s.appendEnds(ctx, r, signal, cursor)
	case cursor.HighestOffset()+maxSnapshotLead < s.journal.Newest(): // the sink is far behind
		return false, nil
	}
	next, err := s.journal.AdvanceReplay(ctx, r)
	if errors.Is(err, journal.ErrTrimmed) {
		r.State, r.Reason = string(signals.Aborted), err.Error()
		return true, s.journal.EndReplay(ctx, r)
	}
	return next.Next != r.Next, err
}

// appendEnds appends the ends of a replay once the sink has received everything else of it, which is stored first: what the
// stream claims then holds after a failover, too.
func (s *requestedReplays) appendEnds(
	ctx context.Context, r journal.Replay, signal signals.Signal, cursor event.Cursor,
) (moved bool, err error) {
	if !s.hasReceived(r.ID, cursor) {
		return false, nil
	}
	records, resources := r.Total()
	if r.State = string(signals.Done); records == 0 {
		r.State = string(signals.Nothing)
	} else if !signal.Delivered {
		signal.Delivered, signal.Count, signal.Result = true, uint64(records), describeReplayed(records, resources)
		s.registry.Update(func(b *signals.Book) { b.PutIfActive(signal) })
		if err := s.registry.SaveUnsaved(ctx); err != nil {
			return false, err
		}
	}
	delete(s.awaited, r.ID)
	return true, s.journal.EndReplay(ctx, r)
}

// hasReceived reports whether a sink has received everything that the journal held for it at the first call for a replay.
func (s *requestedReplays) hasReceived(id string, cursor event.Cursor) bool {
	if s.awaited[id] == 0 {
		s.awaited[id] = s.journal.Newest()
	}
	return cursor.Low >= s.awaited[id]
}

func describeReplayed(records, resources int) string {
	return fmt.Sprintf("%d changes of %d resources", records, resources)
}

// awaitEnds ends the signal of a replay once the sink has received its end records.
func (s *requestedReplays) awaitEnds(
	ctx context.Context, r journal.Replay, signal signals.Signal, cursor event.Cursor,
) (moved bool, err error) {
	if !s.hasReceived(r.ID, cursor) {
		return false, nil
	}
	records, resources := r.Total()
	count, result := uint64(records), describeReplayed(records, resources)
	switch {
	case r.State == string(signals.Nothing):
		result = "the journal keeps no change of an object from there on"
	case r.Last == 0 && r.Reason != "": // it has not begun in this journal
		result = r.Reason + "; how much was emitted again is not known"
	case r.Reason != "":
		result = r.Reason + "; " + result + " were emitted again"
	case signal.Delivered: // also where another exporter has delivered it
		count, result = signal.Count, signal.Result
	}
	return true, s.endSignal(ctx, r, signals.State(r.State), count, result)
}

func (s *requestedReplays) endSignal(ctx context.Context, r journal.Replay, state signals.State, count uint64, result string) error {
	s.registry.Update(func(b *signals.Book) {
		if signal, ok := b.Find(r.ID); ok {
			b.PutIfActive(signal.End(state, time.Now(), count, result))
		}
	})
	s.log.Info("a requested replay has ended", "sink", r.Sink, "signal", r.ID, "state", state, "result", result)
	return s.removeEnded(ctx, r.ID)
}

// removeEnded removes a replay once the end of its signal is stored.
func (s *requestedReplays) removeEnded(ctx context.Context, id string) error {
	if err := s.registry.SaveUnsaved(ctx); err != nil {
		return err
	}
	delete(s.awaited, id)
	return s.journal.RemoveReplay(ctx, id)
}
