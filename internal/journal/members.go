package journal

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// missedReason is the reason of a gap for a sink that was no member.
const missedReason = "the sink was not configured, or not by the exporter that was active"

// Members are the sinks that a journal feeds, and those that it knows from before.
type Members struct {
	Sinks  []string           // by name
	Former []event.FormerSink // as well
}

// members returns the committed members. The caller must not modify them.
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
	if f, edited := w.former[name]; edited {
		if f == nil {
			return former, false
		}
		return *f, true
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	former, ok = w.ledger.former[name]
	return former, ok
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
	if err := g.bindClusterName(d.ClusterName); err != nil {
		return err
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

// bindClusterName binds the journal to the name of the cluster in records, for good.
func (g *group) bindClusterName(name string) error {
	bound, err := g.sinks.ledger.store.checkClusterName(name)
	if err == nil && !bound {
		g.batch.putKey(codec.KeyClusterName, []byte(name))
	}
	return err
}

// replaceDeclared replaces the declared sinks. A sink that returns, and has missed something, gets a gap and what follows.
func (g *group) replaceDeclared(d Declaration) error {
	g.log.sealFrame() // so that the extent has everything that was appended
	if err := g.renameSinks(d); err != nil {
		return err
	}
	for name, s := range g.sinks.allCursors() {
		if !slices.Contains(d.Sinks, name) {
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
			err = g.appendGaps(*missed, "")
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

// renameRequests changes the sink of all its requests.
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
		g.sinks.ledger.logger.Info("journal: a sink is new, and gets all existing objects", "sink", sink, "scopes", scopes, "id", request.ID)
	}
}

// appendGaps appends what marks for a sink that it was no member: a gap of each resource, up to the newest position. cluster
// is the UID of the cluster, "" for the stored one.
func (g *group) appendGaps(s event.FormerSink, cluster string) error {
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
			Gap: &event.GapInfo{From: p.Position, To: to, Reason: missedReason, Sink: s.Name},
		}
		if order, ordered := resourceversion.Compare(p.Position, to); !ordered || order >= 0 {
			c.Pass = rand.Text() // the sink may miss the same positions again: the ID has to differ (I4)
		}
		g.log.addChange(c)
		gaps++
	}
	if gaps > 0 {
		g.sinks.ledger.logger.Warn("journal: a sink was not configured, or not by the exporter that was active, and gets a gap",
			"sink", s.Name, "gaps", gaps)
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
			if i == 0 || s.Position == "" || isLater(lowest, s.Position) {
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
			if highest == "" || isLater(s.Position, highest) {
				highest = s.Position
			}
		}
		all[name] = event.ResourcePosition{Resource: r.Resource, Position: highest}
		if newest == "0" && highest != "" || isLater(highest, newest) {
			newest = highest
		}
	}
	return all, newest
}

func isLater(a, b string) bool {
	order, _ := resourceversion.Compare(a, b)
	return order > 0
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
		} else if err := g.appendGaps(f, s.Cluster); err != nil {
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

// removeAllFormer forgets the former sinks of a journal whose content is dropped.
func (w *sinkWrite) removeAllFormer() {
	w.ledger.mu.Lock()
	names := slices.Collect(maps.Keys(w.ledger.former))
	w.ledger.mu.Unlock()
	for _, name := range names {
		w.removeFormer(name)
	}
}
