package app

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// requestedSnapshots executes the signals that ask for snapshots. The stored scopes have what a signal has requested, and
// what of that has ended; here nothing is kept that a restart or a failover would lose. Safe for concurrent use.
type requestedSnapshots struct {
	*signalControl
	source  scopeSource
	sinks   []config.Sink // the configured ones
	replays *requestedReplays

	mu        sync.Mutex
	seen      map[string]bool   // IDs of the signals that the source was notified of
	endsUntil map[string]uint64 // offsets up to which the ends were appended, by ID of the signals that wait for their delivery
}

// scopeSource is the source that emits requested snapshots.
type scopeSource interface {
	SelectScopes(of source.Selected) (scopes []source.SelectedScope, unknown []string, discovered bool)
	EmitRequested()
	EmitWatermarks()
}

func newRequestedSnapshots(c *signalControl, s scopeSource, sinks []config.Sink, replays *requestedReplays) *requestedSnapshots {
	return &requestedSnapshots{
		signalControl: c, source: s, sinks: sinks, replays: replays, seen: map[string]bool{}, endsUntil: map[string]uint64{},
	}
}

func (s *requestedSnapshots) submit(ctx context.Context, r signals.Request) (signals.Signal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.removeEnded(ctx); err != nil {
		return signals.Signal{}, err
	}
	scopes, unknown, discovered := s.source.SelectScopes(source.Selected{Names: r.Select, Namespace: r.Namespace, Objects: r.Objects})
	if !discovered {
		return signals.Signal{}, &signals.NotActiveError{Reason: "this exporter has not found out yet what there is to watch; try again"}
	}
	signal := r.New(time.Now())
	refusal := s.refusalOf(r, false, s.sinks)
	if refusal == "" {
		refusal = invalidSelection(r)
	}
	switch {
	case refusal != "":
	case s.waitsForSnapshot(r.Sink) != "":
		refusal = fmt.Sprintf("sink %q already waits for the snapshot %s", r.Sink, s.waitsForSnapshot(r.Sink))
	case len(scopes) > 0 && len(unknown) > 0:
		refusal = "nothing that is watched is named " + strings.Join(unknown, ", ")
	}
	switch {
	case refusal != "":
		return s.registry.Refuse(ctx, signal, refusal), nil
	case len(scopes) == 0:
		signal = signal.End(signals.Nothing, time.Now(), 0, nothingSelected(r))
	case len(r.Objects) > 0:
		signal.Result = fmt.Sprintf("%d objects follow, between live changes", countObjects(scopes))
	default:
		signal.Result = fmt.Sprintf("%d resources follow, between live changes", countResources(scopes))
	}
	if err := s.registry.Commit(ctx, signal.ID, func(b *signals.Book) { b.Put(signal) }); err != nil || signal.State != signals.Active {
		return signal, err
	}
	s.log.Info("a snapshot is requested by a signal", "sink", signal.Sink, "signal", signal.ID, "resources", countResources(scopes))
	return signal, s.request(ctx, signal, scopes)
}

// emitWatermarks has the source emit a watermark of each resource. That is over at once, so no store keeps the signal.
func (s *requestedSnapshots) emitWatermarks(r signals.Request) signals.Signal {
	signal := r.New(time.Now())
	refusal := s.refusalOf(r, false, s.sinks)
	if _, isPaused := s.registry.ActivePause(signal.Subject()); refusal == "" && isPaused {
		refusal = fmt.Sprintf("sink %q is paused, and gets no watermark", r.Sink)
	}
	if refusal != "" {
		return signal.End(signals.Refused, time.Now(), 0, refusal)
	}
	s.source.EmitWatermarks()
	return signal.End(signals.Done, time.Now(), 0, "a watermark of each resource follows")
}

// cancel ends a snapshot or a replay that is active. The end of a snapshot is stored together with that of the request to
// cancel it, and then what it has requested is removed. A replay gets its end in the stream, and ends with the delivery of
// that.
func (s *requestedSnapshots) cancel(ctx context.Context, r signals.Request) (signals.Signal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	target, found := s.registry.Find(r.Target)
	signal := r.New(time.Now())
	signal.Sink = target.Sink
	switch {
	case !found:
		return s.registry.Refuse(ctx, signal, fmt.Sprintf("no signal %q is kept; exporter signal list has those that are", r.Target)), nil
	case target.Kind == signals.Pause:
		return s.registry.Refuse(ctx, signal, fmt.Sprintf("%s is a pause, which exporter signal resume %s ends", target.ID, target.Subject().Flag())), nil
	case target.Kind != signals.Snapshot && target.Kind != signals.Replay:
		return s.registry.Refuse(ctx, signal, fmt.Sprintf("%s is no snapshot but %s, which cannot be canceled", target.ID, target.Kind)), nil
	case target.State != signals.Active:
		signal = signal.End(signals.Nothing, time.Now(), 0, fmt.Sprintf("%s %s has ended before: %s", target.Kind, target.ID, target.State))
	default:
		signal = signal.End(signals.Done, time.Now(), 0, fmt.Sprintf("%s %s is canceled", target.Kind, target.ID))
	}
	if signal.State == signals.Done && target.Kind == signals.Replay {
		canceled, err := s.replays.cancelReplay(ctx, target.ID, signal.ID)
		switch {
		case err != nil:
			return signal.End(signals.Aborted, time.Now(), 0, err.Error()), err
		case !canceled:
			signal = signal.End(signals.Nothing, time.Now(), 0, fmt.Sprintf("replay %s is ending", target.ID))
		}
	}
	err := s.registry.Commit(ctx, signal.ID, func(b *signals.Book) {
		if signal.State == signals.Done && target.Kind == signals.Snapshot {
			b.PutIfActive(target.End(signals.Aborted, time.Now(), 0, "canceled by signal "+signal.ID+s.describeEnded(target.ID)))
		}
		b.Put(signal)
	})
	if err != nil || signal.State != signals.Done {
		return signal, err
	}
	delete(s.endsUntil, target.ID)
	s.log.Info("a signal is canceled", "sink", signal.Sink, "signal", signal.ID, "canceled", target.ID)
	if err := s.removeEnded(ctx); err != nil {
		s.log.Debug("the requests of a canceled snapshot are not removed yet", "error", err)
	}
	return signal, nil
}

// describeEnded describes how much of a snapshot had its end, to follow other text; "" if nothing had.
func (s *requestedSnapshots) describeEnded(id string) string {
	ended, objects := 0, 0
	for _, r := range s.journal.RequestedSnapshots() {
		if r.ID == id && r.Ended {
			ended, objects = ended+1, objects+r.Count
		}
	}
	if ended == 0 {
		return ""
	}
	return fmt.Sprintf("; parts of it had ended, with %d objects", objects)
}

func countResources(scopes []source.SelectedScope) int {
	names := map[string]bool{}
	for _, s := range scopes {
		names[s.Resource] = true
	}
	return len(names)
}

func countObjects(scopes []source.SelectedScope) (n int) {
	for _, s := range scopes {
		n += len(s.Objects)
	}
	return n
}

// nothingSelected describes why a valid request selects nothing.
func nothingSelected(r signals.Request) string {
	if len(r.Objects) == 0 {
		return "nothing that is watched is selected"
	}
	return "nothing that is watched is selected: a namespaced object is NAMESPACE/NAME, another one NAME"
}

// invalidSelection returns why a request can select nothing; "" if it can.
func invalidSelection(r signals.Request) string {
	rule := selection.Rule{Select: r.Select}
	if len(rule.Select) == 0 {
		rule.Select = []string{"*"}
	}
	if r.Namespace != "" {
		rule.Namespaces.Include = []string{r.Namespace}
	}
	err := rule.Validate("snapshot")
	if refusal := invalidObjects(r); err == nil && refusal != "" {
		return refusal
	}
	switch {
	case err != nil:
		return err.Error()
	case strings.ContainsAny(r.Namespace, "*?["):
		return fmt.Sprintf("%q is a pattern, and not the name of one namespace", r.Namespace)
	}
	return ""
}

// invalidObjects returns why the objects of a request cannot be chosen; "" if they can.
func invalidObjects(r signals.Request) string {
	switch {
	case len(r.Objects) == 0:
		return ""
	case len(r.Select) != 1 || selection.IsWildcard(r.Select[0]):
		return "objects are of one resource, and the signal names " + cmp.Or(strings.Join(r.Select, ", "), "none")
	case r.Namespace != "":
		return "an object names its namespace itself, and the signal has another one"
	}
	return ""
}

// waitsForSnapshot returns the ID of a snapshot that a sink waits for; "" if there is none.
func (s *requestedSnapshots) waitsForSnapshot(sink string) string {
	for _, r := range s.journal.RequestedSnapshots() {
		if r.Sink == sink {
			return r.ID
		}
	}
	for _, o := range s.registry.List() {
		if o.Kind == signals.Snapshot && o.State == signals.Active && o.Sink == sink {
			return o.ID
		}
	}
	return ""
}

func (s *requestedSnapshots) request(ctx context.Context, signal signals.Signal, scopes []source.SelectedScope) error {
	requests := map[string]event.SnapshotRequest{}
	for _, scope := range scopes {
		requests[scope.ID] = event.SnapshotRequest{
			Sink: signal.Sink, ID: signal.ID, Namespace: signal.Namespace, Objects: event.EncodeObjectKeys(scope.Objects), Signal: true,
		}
	}
	n, err := s.journal.RequestSnapshots(ctx, requests)
	if err == nil && n > 0 {
		s.source.EmitRequested()
	}
	return err
}

// beginTerm removes what has ended before a source emits it again. A store that does not take that holds up nothing: it has
// a condition of its own, and the next round tries again.
func (s *requestedSnapshots) beginTerm(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	if err := s.removeEnded(ctx); err != nil {
		s.log.Debug("the requests of ended snapshots are not removed yet", "error", err)
	}
}

// run ends signals after their snapshots, until ctx ends.
func (s *requestedSnapshots) run(ctx context.Context) error {
	for ratelimit.Sleep(ctx, signalInterval) == nil {
		limited, cancel := context.WithTimeout(ctx, signalTimeout)
		err := s.advance(limited)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.Debug("what became of requested snapshots is not stored yet", "error", err)
		}
	}
	return nil
}

// advance brings each signal that is active to its end, if it has come, or requests its snapshots where the store lacks
// them: the exporter ended after the signal was stored, or another one has taken over from a state before that.
func (s *requestedSnapshots) advance(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	byID := map[string][]journal.RequestedSnapshot{}
	for _, r := range s.journal.RequestedSnapshots() {
		byID[r.ID] = append(byID[r.ID], r)
	}
	for _, signal := range s.registry.List() {
		if signal.Kind != signals.Snapshot || signal.State != signals.Active {
			continue
		}
		ended, err := s.advanceSignal(ctx, signal, byID[signal.ID])
		if err != nil {
			return err
		}
		if ended.State != signals.Active {
			s.registry.Update(func(b *signals.Book) { b.PutIfActive(ended) })
			s.log.Info("a requested snapshot has ended", "sink", ended.Sink, "signal", ended.ID, "state", ended.State, "result", ended.Result)
		}
	}
	return s.removeEnded(ctx)
}

// advanceSignal returns an active signal, with its end if that has come. requested is what the stored scopes have of it.
func (s *requestedSnapshots) advanceSignal(
	ctx context.Context, signal signals.Signal, requested []journal.RequestedSnapshot,
) (signals.Signal, error) {
	if len(requested) == 0 {
		if refusal := s.refusalOf(signals.Request{Kind: signal.Kind, Sink: signal.Sink}, false, s.sinks); refusal != "" {
			return signal.End(signals.Aborted, time.Now(), 0, "the sink was removed"), nil
		}
		scopes, _, discovered := s.source.SelectScopes(
			source.Selected{Names: signal.Select, Namespace: signal.Namespace, Objects: signal.Objects})
		if discovered && len(scopes) == 0 {
			return signal.End(signals.Nothing, time.Now(), 0, "nothing that is watched is selected any more"), nil
		}
		return signal, s.request(ctx, signal, scopes)
	}
	if !s.seen[signal.ID] { // requested during a reload, perhaps, with the source before
		s.seen[signal.ID] = true
		s.source.EmitRequested()
	}
	count, absent, resources := 0, 0, map[string]bool{}
	for _, r := range requested {
		if !r.Ended {
			delete(s.endsUntil, signal.ID)
			return signal, nil
		}
		count += r.Count
		absent += r.Absent
		resources[r.Resource] = true
	}
	if s.endsUntil[signal.ID] == 0 {
		s.endsUntil[signal.ID] = s.journal.Newest()
	}
	cursor, _, err := s.journal.Cursor(requested[0].Sink) // the name that the sink has now
	if err != nil || cursor.Low < s.endsUntil[signal.ID] {
		return signal, err
	}
	delete(s.endsUntil, signal.ID)
	result := fmt.Sprintf("%d objects of %d resources", count, len(resources))
	if absent > 0 {
		result += fmt.Sprintf("; %d do not exist, and their deletes were emitted", absent)
	}
	return signal.End(signals.Done, time.Now(), uint64(count+absent), result), nil
}

// removeEnded stores the ends of signals, and then removes their requests: a source that emits one of them ends it. After a
// failover the state has ends that neither this journal nor the stored scopes have.
func (s *requestedSnapshots) removeEnded(ctx context.Context) error {
	if err := s.registry.SaveUnsaved(ctx); err != nil {
		return err
	}
	active := map[string]bool{}
	for _, signal := range s.registry.List() {
		active[signal.ID] = signal.State == signals.Active
	}
	hasEnded := func(r event.SnapshotRequest) bool { return r.Signal && !active[r.ID] }
	for _, r := range s.journal.RequestedSnapshots() {
		if hasEnded(r.SnapshotRequest) {
			err := s.journal.RemoveRequestedSnapshots(ctx, hasEnded)
			s.source.EmitRequested()
			return err
		}
	}
	return nil
}
