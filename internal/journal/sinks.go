package journal

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// SinkLedger holds how far each declared sink got. The lowest cursor holds the trim. Safe for concurrent use.
type SinkLedger struct {
	store  *store
	queue  *queue
	log    *Log
	logger *slog.Logger

	// clusterName is the name of the cluster in records, "" for its UID. Only the committer's goroutine uses it.
	clusterName string
	// starts is where new sinks begin. Only the committer's goroutine uses it.
	starts map[string]Start

	mu     sync.Mutex
	sinks  map[string]sinkCursor       // of declared sinks, by name
	former map[string]event.FormerSink // that were declared, by name
}

type sinkCursor struct {
	cursor event.Cursor
	stored bool // false while the sink has settled nothing: its cursor is then zero
}

// Cursor returns how far a sink got, as last settled. The second result is false for a sink that never settled anything.
func (l *SinkLedger) Cursor(sink string) (event.Cursor, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, declared := l.sinks[sink]
	if !declared {
		return event.Cursor{}, false, fmt.Errorf("journal: sink %q is not declared", sink)
	}
	return s.cursor.Normalize(), s.stored, nil
}

// Settle stores how far a declared sink got, and the changes it gave up on, in one atomic write; both are durable when it
// returns nil (I2). A cursor may go back, to publish again, but not below what is trimmed, and never past the newest
// change. When ctx ends first the outcome is unknown, and settling again is harmless.
func (l *SinkLedger) Settle(ctx context.Context, sink string, c event.Cursor, dead []event.DeadLetter) error {
	c = c.Normalize()
	return l.queue.submit(ctx, func(g *group) error { return g.settleSink(sink, c, dead) }, nil)
}

// LowestCursor is the newest offset up to which every declared sink, except those named, has settled everything; without
// such a sink, the newest offset. It does not wait.
func (l *SinkLedger) LowestCursor(except ...string) uint64 {
	newest := l.log.Newest() // before the cursors, which never pass it
	if name, low := l.slowestSink(except...); name != "" {
		return low
	}
	return newest
}

// slowestSink is the declared sink with the lowest cursor, except those named, and that cursor; "" where none is declared.
func (l *SinkLedger) slowestSink(except ...string) (name string, low uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slowestOf(l.sinks, except)
}

func slowestOf(sinks map[string]sinkCursor, except []string) (slowest string, low uint64) {
	for name, s := range sinks {
		if (slowest == "" || s.cursor.Low < low || s.cursor.Low == low && name < slowest) && !slices.Contains(except, name) {
			slowest, low = name, s.cursor.Low
		}
	}
	return slowest, low
}

func (l *SinkLedger) declaredNames() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.sinks))
}

func (l *SinkLedger) loadFromStore() error {
	cursors, err := loadCursors(l.store.storeReader, l.log.Newest())
	if err != nil {
		return err
	}
	records, err := loadSinkRecords(l.store.storeReader)
	if err != nil {
		return err
	}
	sinks := map[string]sinkCursor{}
	for name, c := range cursors {
		sinks[name] = sinkCursor{cursor: c, stored: true}
	}
	for name, r := range records {
		if _, has := cursors[name]; !has && r.Declared {
			sinks[name] = sinkCursor{}
		}
	}
	former, err := loadFormerSinks(l.store.storeReader)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sinks, l.former = sinks, former
	return err
}

// loadSinkRecords returns the record of each sink that was ever declared.
func loadSinkRecords(r storeReader) (map[string]codec.SinkRecord, error) {
	records, prefix := map[string]codec.SinkRecord{}, codec.KeySinkRecord("")
	return records, r.forEachKey(prefix, func(key, value []byte) (err error) {
		name := string(key[len(prefix):])
		records[name], err = codec.DecodeSinkRecord(value)
		return err
	})
}

// loadCursors returns the stored cursor of each sink, and refuses cursors past the newest change.
func loadCursors(r storeReader, newest uint64) (map[string]event.Cursor, error) {
	cursors := map[string]event.Cursor{}
	return cursors, r.forEachKey([]byte{codec.PrefixCursor}, func(key, value []byte) error {
		name := string(key[1:])
		c, err := codec.DecodeCursor(value)
		if err == nil && c.HighestOffset() > newest {
			err = fmt.Errorf("%w: cursor of sink %q is at %d, past the newest change %d", form.ErrMalformed, name, c.HighestOffset(), newest)
		}
		cursors[name] = c
		return err
	})
}

// publishWrite makes the cursors of a committed group visible.
func (l *SinkLedger) publishWrite(w *sinkWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.edited.apply(l.sinks)
	w.former.apply(l.former)
}

// edits are the entries of a map that a group changes, as they will be after the commit; nil: none any more.
type edits[V any] map[string]*V

func (e edits[V]) apply(to map[string]V) {
	for name, v := range e {
		if v == nil {
			delete(to, name)
		} else {
			to[name] = *v
		}
	}
}

// find returns an entry as it will be after the commit; false if there is none then.
func (e edits[V]) find(name string, committed map[string]V) (v V, found bool) {
	if edited, ok := e[name]; ok && edited != nil {
		return *edited, true
	} else if ok {
		return v, false
	}
	v, found = committed[name]
	return v, found
}

type sinkWrite struct {
	ledger *SinkLedger
	batch  *writeBatch
	edited edits[sinkCursor]
	former edits[event.FormerSink]
}

func (l *SinkLedger) newWrite(b *writeBatch) sinkWrite {
	return sinkWrite{ledger: l, batch: b, edited: edits[sinkCursor]{}, former: edits[event.FormerSink]{}}
}

// findSink returns the cursor of a sink as it will be after the commit; false when it is not declared.
func (w *sinkWrite) findSink(sink string) (s sinkCursor, declared bool) {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return w.edited.find(sink, w.ledger.sinks)
}

// allCursors returns the cursors of all declared sinks as they will be after the commit.
func (w *sinkWrite) allCursors() map[string]sinkCursor {
	w.ledger.mu.Lock()
	all := maps.Clone(w.ledger.sinks)
	w.ledger.mu.Unlock()
	w.edited.apply(all)
	return all
}

// declaredNames returns the names of all sinks that are declared after the commit.
func (w *sinkWrite) declaredNames() []string { return slices.Sorted(maps.Keys(w.allCursors())) }

// removeSink deletes the cursor of a sink and records what it has not received. positions are those of the newest change.
func (w *sinkWrite) removeSink(name string, s sinkCursor, extent logExtent, positions []event.ResourcePosition) {
	r := codec.SinkRecord{Removed: time.Now().UTC(), Low: max(s.cursor.Low, extent.oldest-1), Resending: s.cursor.Resending}
	r.Unsent = extent.newest - min(extent.newest, r.Low)
	w.batch.removeKey(codec.KeyCursor(name))
	w.putRecord(name, r)
	w.edited[name] = nil
	if isInternalSink(name) {
		return
	}
	if r.Unsent > 0 { // where the changes after Low began is not stored
		positions = slices.Clone(positions)
		for i := range positions {
			positions[i].Position = ""
		}
	}
	w.putFormer(event.FormerSink{Name: name, Positions: positions})
	if r.Unsent == 0 {
		return
	}
	w.ledger.logger.Warn("journal: a sink is not configured any more, and changes that wait for it will not be sent to it",
		"sink", name, "changes", r.Unsent, "after", r.Low)
}

// addSink declares a sink. A new one begins as start defines. One that was declared before continues behind what it had
// received, if all of that is still there; otherwise missed has what is known of it.
func (w *sinkWrite) addSink(name string, start Start, destination string, extent logExtent) (isNew bool, missed *event.FormerSink, err error) {
	value, err := w.ledger.store.getValue(codec.KeySinkRecord(name))
	if err != nil {
		return false, nil, err
	}
	var r codec.SinkRecord
	if value != nil {
		if r, err = codec.DecodeSinkRecord(value); err != nil {
			return false, nil, err
		}
	}
	former, known := w.findFormer(name)
	switch {
	case !known && start == StartJournal: // new
		r.Unsent = min(r.Unsent, extent.oldest-1-min(extent.oldest-1, r.Low))
		w.edited[name], isNew = &sinkCursor{}, true
	case !known:
		r.Unsent, isNew = 0, true
		w.setCursor(name, event.Cursor{Low: extent.newest})
	case former.Missed || r.Low+1 < extent.oldest:
		r.Unsent = extent.newest - min(extent.newest, r.Low)
		w.setCursor(name, event.Cursor{Low: extent.newest})
		missed = &former
	default:
		r.Unsent = 0
		w.setCursor(name, event.Cursor{Low: r.Low, Resending: r.Resending})
	}
	w.removeFormer(name)
	r.Declared, r.Destination, r.Formerly, r.Resending = true, destination, "", 0
	w.putRecord(name, r)
	return isNew, missed, nil
}

// renameSink lets a sink continue in the place of a declared one, of which nothing else is left.
func (w *sinkWrite) renameSink(before, name, destination string) {
	s, _ := w.findSink(before)
	w.batch.removeKey(codec.KeyCursor(before))
	w.batch.removeKey(codec.KeySinkRecord(before))
	w.edited[before], w.edited[name] = nil, &s
	if s.stored {
		w.setCursor(name, s.cursor)
	}
	w.putRecord(name, codec.SinkRecord{Declared: true, Destination: destination, Formerly: before})
	w.ledger.logger.Info("journal: a sink is renamed and continues where it was; its dead letters keep the former name", "sink", name, "formerly", before)
}

func (w *sinkWrite) putRecord(name string, r codec.SinkRecord) {
	w.batch.putKey(codec.KeySinkRecord(name), codec.EncodeSinkRecord(r))
}

// FormerName returns the name that a declared sink had before it was renamed; "" if it was not. Records that the journal
// holds for that name alone are for the sink.
func (l *SinkLedger) FormerName(sink string) (string, error) {
	release, err := l.store.acquire()
	if err != nil {
		return "", err
	}
	defer release()
	value, err := l.store.getValue(codec.KeySinkRecord(sink))
	if err != nil || value == nil {
		return "", err
	}
	r, err := codec.DecodeSinkRecord(value)
	return r.Formerly, err
}

// isInternalSink reports whether a cursor belongs to a part of the exporter, not to a configured sink.
func isInternalSink(name string) bool { return strings.HasPrefix(name, "@") }

// checkCursor refuses a cursor that contradicts the log. It compares with the newest committed change: nothing newer can
// have been read.
func (w *sinkWrite) checkCursor(sink string, c event.Cursor, log *logWrite) error {
	newest := log.log.Newest()
	switch _, declared := w.findSink(sink); {
	case !declared:
		return errors.New("not declared")
	case c.HighestOffset() > newest:
		return fmt.Errorf("cursor %d is past the newest change %d", c.HighestOffset(), newest)
	case c.Low+1 < log.extent.oldest:
		return fmt.Errorf("cursor %d is below the oldest change %d", c.Low, log.extent.oldest)
	}
	return nil
}

func (w *sinkWrite) setCursor(sink string, c event.Cursor) {
	w.batch.putKey(codec.KeyCursor(sink), codec.EncodeCursor(c))
	w.edited[sink] = &sinkCursor{cursor: c, stored: true}
}

// missedReason is the reason of a gap for a sink that was no member.
const missedReason = "the sink was not configured, or not by the exporter that was active, or had lost something"

// Members are the sinks that a journal feeds, and those that it knows from before.
type Members struct {
	Sinks  []string           // by name
	Former []event.FormerSink // as well
}

func (l *SinkLedger) members() (m Members) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.sinks {
		if !isInternalSink(name) {
			m.Sinks = append(m.Sinks, name)
		}
	}
	slices.Sort(m.Sinks)
	for _, name := range slices.Sorted(maps.Keys(l.former)) {
		m.Former = append(m.Former, l.former[name])
	}
	return m
}

// loadFormerSinks returns the sinks that are declared no longer, by name.
func loadFormerSinks(r storeReader) (map[string]event.FormerSink, error) {
	former, prefix := map[string]event.FormerSink{}, codec.KeyFormerSink("")
	return former, r.forEachKey(prefix, func(key, value []byte) (err error) {
		name := string(key[len(prefix):])
		former[name], err = codec.DecodeFormerSink(name, value)
		return err
	})
}

// findFormer returns what is known of a sink that is declared no longer, as it will be after the commit.
func (w *sinkWrite) findFormer(name string) (former event.FormerSink, ok bool) {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return w.former.find(name, w.ledger.former)
}

func (w *sinkWrite) putFormer(f event.FormerSink) {
	w.batch.putKey(codec.KeyFormerSink(f.Name), codec.EncodeFormerSink(f))
	w.former[f.Name] = &f
}

func (w *sinkWrite) removeFormer(name string) {
	w.batch.removeKey(codec.KeyFormerSink(name))
	w.former[name] = nil
}

// declare does what Declare and Open have in common. It writes nothing if everything is declared already.
func (g *group) declare(d Declaration) error {
	bound, err := g.sinks.ledger.store.checkClusterName(d.ClusterName)
	if err != nil {
		return err
	}
	if !bound {
		g.batch.putKey(codec.KeyClusterName, []byte(d.ClusterName)) // for good
	}
	if !d.KeepEvidence {
		if err := g.dropEvidence(); err != nil {
			return err
		}
	}
	g.sinks.ledger.clusterName, g.sinks.ledger.starts = d.ClusterName, d.Starts
	if err := g.replaceDeclared(d); err != nil {
		return err
	}
	g.log.log.orphans.declare(g.batch, d)
	return nil
}

// replaceDeclared replaces the declared sinks. A sink that returns, and has missed something, gets a gap and what follows.
func (g *group) replaceDeclared(d Declaration) error {
	g.log.sealFrame() // so that the extent has everything that was appended
	if err := g.renameSinks(d); err != nil {
		return err
	}
	for name, s := range g.sinks.allCursors() {
		if !slices.Contains(d.Sinks, name) && !slices.Contains(d.Lasting, name) {
			g.sinks.removeSink(name, s, g.log.extent, g.lowestPositions())
		}
	}
	g.known.removeRequests(func(r event.SnapshotRequest) bool { return !slices.Contains(d.Sinks, r.Sink) })
	for _, name := range d.Sinks {
		if _, declared := g.sinks.findSink(name); declared {
			continue
		}
		isNew, missed, err := g.sinks.addSink(name, d.Starts[name], d.Destinations[name], g.log.extent)
		if missed != nil {
			err = g.appendGaps(*missed, "", missedReason)
		}
		if err != nil {
			return err
		}
		if isNew && d.Starts[name] == StartSnapshot {
			g.requestSnapshots(name)
		}
	}
	return nil
}

// renameSinks lets each new sink continue in the place of the only declared one that goes, if there is one with its
// destination, and records the destinations of all.
func (g *group) renameSinks(d Declaration) error {
	records, err := loadSinkRecords(g.sinks.ledger.store.storeReader)
	if err != nil {
		return err
	}
	byDestination := map[string][]string{} // of declared sinks that go
	for name := range g.sinks.allCursors() {
		if to := records[name].Destination; to != "" && !slices.Contains(d.Sinks, name) {
			byDestination[to] = append(byDestination[to], name)
		}
	}
	for _, name := range d.Sinks {
		to := d.Destinations[name]
		if _, declared := g.sinks.findSink(name); declared {
			if r := records[name]; r.Destination != to {
				r.Declared, r.Destination = true, to
				g.sinks.putRecord(name, r)
			}
			continue
		}
		for other, r := range records {
			if r.Formerly == name { // what is addressed to the name from now on is for the new sink
				r.Formerly = ""
				g.sinks.putRecord(other, r)
			}
		}
		_, known := records[name]
		if before := byDestination[to]; len(before) == 1 && !known {
			g.sinks.renameSink(before[0], name, to)
			g.renameRequests(before[0], name)
			g.log.log.orphans.renameSink(g.batch, before[0], name)
			delete(byDestination, to)
		}
	}
	return nil
}

func (g *group) renameRequests(before, name string) {
	for resource, r := range g.known.allResources() {
		for i, s := range r.Scopes {
			all := s.SnapshotRequests()
			if !slices.ContainsFunc(all, func(r event.SnapshotRequest) bool { return r.Sink == before }) {
				continue
			}
			for n := range all {
				if all[n].Sink == before {
					all[n].Sink = name
				}
			}
			g.known.editResource(resource).Scopes[i].ReplaceSnapshotRequests(all)
		}
	}
}

// requestSnapshots requests a snapshot of every stored scope for a sink that is new. Scopes that are stored later begin with
// a list that all sinks get.
func (g *group) requestSnapshots(sink string) {
	request := event.SnapshotRequest{Sink: sink, ID: rand.Text()}
	scopes := g.known.requestSnapshots(func(string) (event.SnapshotRequest, bool) { return request, true })
	if scopes > 0 {
		g.sinks.ledger.logger.Info("journal: a sink begins, and gets all existing objects", "sink", sink, "scopes", scopes, "id", request.ID)
	}
}

// RenewSink gives a sink whose destination has lost what is not kept a gap of each resource, and then what exists.
func (l *SinkLedger) RenewSink(ctx context.Context, sink, reason string) error {
	return l.queue.submit(ctx, func(g *group) error {
		g.requestSnapshots(sink)
		return g.appendGaps(event.FormerSink{Name: sink}, "", reason)
	}, nil)
}

// appendGaps appends what marks for a sink that it has missed something: a gap of each resource, up to the newest position.
// cluster is the UID of the cluster, "" for the stored one.
func (g *group) appendGaps(s event.FormerSink, cluster, reason string) error {
	name, err := g.clusterName(cluster)
	if err != nil {
		return err
	}
	from := map[string]event.ResourcePosition{}
	for _, p := range s.Positions {
		from[p.Resource.String()] = p
	}
	current, newest := g.newestPositions()
	for _, p := range current {
		if _, ok := from[p.Resource.String()]; !ok {
			from[p.Resource.String()] = event.ResourcePosition{Resource: p.Resource}
		}
	}
	gaps := 0
	for _, resource := range slices.Sorted(maps.Keys(from)) {
		p, to := from[resource], newest // of a resource that is not watched any more, or has no position now
		if now := current[resource]; now.Position != "" {
			p.Resource, to = now.Resource, now.Position
		}
		if p.Position == to && to != "" {
			continue
		}
		c := &event.Change{
			Type: event.Gap, Cluster: name, Resource: p.Resource, ResourceVersion: to, ObservedAt: time.Now().UTC(),
			Gap: &event.GapInfo{From: p.Position, To: to, Reason: reason, Sink: s.Name},
		}
		if order, ordered := resourceversion.Compare(p.Position, to); !ordered || order >= 0 {
			c.Pass = rand.Text() // the sink may miss the same positions again: the ID has to differ (I4)
		}
		g.log.addChange(c)
		gaps++
	}
	if gaps > 0 {
		g.sinks.ledger.logger.Warn("journal: a sink has missed something, and gets a gap", "sink", s.Name, "gaps", gaps, "reason", reason)
	}
	return nil
}

// clusterName returns the name of the cluster in records: the configured one, or its UID. uid is "" for the stored one.
func (g *group) clusterName(uid string) (string, error) {
	if name := g.sinks.ledger.clusterName; name != "" || uid != "" {
		return cmp.Or(name, uid), nil
	}
	stored, err := g.sinks.ledger.store.getValue(codec.KeyCluster)
	return string(stored), err
}

// lowestPositions returns up to where everything of each resource is in the journal after the commit.
func (g *group) lowestPositions() (all []event.ResourcePosition) {
	resources := g.known.allResources()
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		lowest := ""
		for i, s := range resources[name].Scopes {
			if i == 0 || s.Position == "" || resourceversion.Order(lowest, s.Position) > 0 {
				lowest = s.Position
			}
			if lowest == "" {
				break
			}
		}
		all = append(all, event.ResourcePosition{Resource: resources[name].Resource, Position: lowest})
	}
	return all
}

// newestPositions returns the newest position of each resource after the commit, by name, and the newest of all. It is 0 if
// no resource has one.
func (g *group) newestPositions() (all map[string]event.ResourcePosition, newest string) {
	all, newest = map[string]event.ResourcePosition{}, "0"
	for name, r := range g.known.allResources() {
		highest := ""
		for _, s := range r.Scopes {
			if highest == "" || resourceversion.Order(s.Position, highest) > 0 {
				highest = s.Position
			}
		}
		all[name] = event.ResourcePosition{Resource: r.Resource, Position: highest}
		if newest == "0" && highest != "" || resourceversion.Order(highest, newest) > 0 {
			newest = highest
		}
	}
	return all, newest
}

// seedMembers makes the members of a seed those of the journal, which is empty: those that it does not declare are former
// sinks from then on, those that it declares get a gap for what they have missed, and those that were none get a snapshot.
func (g *group) seedMembers(s Seed) error {
	declared := g.sinks.declaredNames()
	g.known.removeRequests(func(r event.SnapshotRequest) bool { return !slices.Contains(declared, r.Sink) })
	for _, name := range s.Members.Sinks {
		if !slices.Contains(declared, name) {
			g.recordAbsent(event.FormerSink{Name: name, Positions: g.lowestPositions()})
		}
	}
	for _, f := range s.Members.Former {
		f.Missed = true
		if !slices.Contains(declared, f.Name) {
			g.recordAbsent(f)
			continue
		}
		missing := event.Cursor{Low: g.log.extent.newest, Resending: g.log.extent.newest + 1} // although it may hold newer ones
		if err := cmp.Or(g.appendGaps(f, s.Cluster, missedReason), g.settleSink(f.Name, missing, nil)); err != nil {
			return err
		}
	}
	if len(s.Members.Sinks) == 0 { // not known, so none of the declared ones is known to be new
		return nil
	}
	for _, name := range declared {
		isFormer := slices.ContainsFunc(s.Members.Former, func(f event.FormerSink) bool { return f.Name == name })
		if !isFormer && !slices.Contains(s.Members.Sinks, name) && g.sinks.ledger.starts[name] == StartSnapshot {
			g.requestSnapshots(name)
		}
	}
	return nil
}

// recordAbsent records a sink that has received what a seed has, but for what it missed before.
func (g *group) recordAbsent(f event.FormerSink) {
	r := codec.SinkRecord{Removed: time.Now().UTC(), Low: g.log.extent.newest}
	g.sinks.putRecord(f.Name, r)
	g.sinks.putFormer(f)
}
