package journal

import (
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
	if !d.KeepEvidence {
		if err := g.dropEvidence(); err != nil {
			return err
		}
	}
	g.sinks.ledger.clusterName = d.ClusterName
	return g.replaceDeclared(d.Sinks)
}

// replaceDeclared makes names the declared sinks. A sink that returns, and has missed something, gets a gap and what
// follows.
func (g *group) replaceDeclared(names []string) error {
	g.log.sealFrame() // so that the extent has everything that was appended
	for name, s := range g.sinks.allCursors() {
		if !slices.Contains(names, name) {
			g.sinks.removeSink(name, s, g.log.extent, g.lowestPositions())
		}
	}
	for _, name := range names {
		if _, declared := g.sinks.findSink(name); declared {
			continue
		}
		missed, err := g.sinks.addSink(name, g.log.extent)
		if missed != nil {
			err = g.appendGaps(*missed, "")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// appendGaps appends what marks for a sink that it was no member: a gap of each resource, up to the newest position. cluster
// is the UID of the cluster, "" for the stored one.
func (g *group) appendGaps(s event.FormerSink, cluster string) error {
	name := g.sinks.ledger.clusterName
	if name == "" {
		name = cluster
	}
	if name == "" {
		stored, err := g.sinks.ledger.store.getValue(codec.KeyCluster)
		if err != nil {
			return err
		}
		name = string(stored)
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
// sinks from then on, and those that it declares get a gap for what they have missed.
func (g *group) seedMembers(s Seed) error {
	declared := g.sinks.declaredNames()
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
	return nil
}

// recordAbsent records a sink that has received what a seed has, but for what it missed before.
func (g *group) recordAbsent(f event.FormerSink) {
	r := codec.SinkRecord{Removed: time.Now().UTC(), Low: g.log.extent.newest}
	g.sinks.batch.putKey(codec.KeySinkRecord(f.Name), codec.EncodeSinkRecord(r))
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
