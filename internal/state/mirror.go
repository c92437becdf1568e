package state

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// sinkLane names a lane among the lanes of all sinks.
type sinkLane struct {
	sink string
	lane sinks.Lane
}

// mirror is this process's copy of the stored state. Only the goroutine inside Follow, TakeOver, Run, Inspect or Reset uses
// it.
type mirror struct {
	store sinks.StateStore
	log   *slog.Logger

	table *table
	// lostLanes are the lanes of a state that was purged or replaced. They still have to be fenced: an older process may
	// have messages on their way through them.
	lostLanes map[sinkLane]sinks.LanePosition
	// seen is the newest state that was read, without its lanes and resources. If there is none later, it was lost.
	seen stateContent
}

func newMirror(log *slog.Logger) *mirror {
	return &mirror{log: log, table: newTable(), lostLanes: map[sinkLane]sinks.LanePosition{}}
}

// readContent reads the state to its end and decodes everything but the known objects.
func (m *mirror) readContent(ctx context.Context) (stateContent, error) {
	if err := m.readStored(ctx); err != nil {
		return stateContent{}, err
	}
	c, err := m.table.decodeContent()
	if err != nil {
		return c, malformedState(err)
	}
	m.recordSeen(c)
	return c, nil
}

func (m *mirror) recordSeen(c stateContent) {
	if c.meta.version != 0 {
		m.seen = stateContent{meta: c.meta, deployment: c.deployment, members: c.members}
	}
}

// readStored applies everything that the store holds beyond the last read.
func (m *mirror) readStored(ctx context.Context) error {
	for {
		reset, err := m.store.Read(ctx, func(e sinks.StateEntry) error {
			m.table.applyEntry(e)
			return nil
		})
		switch {
		case err != nil:
			return fmt.Errorf("read the replicated state: %w", err)
		case reset:
			m.log.Warn("the replicated state was purged or replaced; reading it again from the start")
			m.retainLostLanes()
			m.table = newTable()
		default:
			if err := m.table.applyRedo(); err != nil {
				return malformedState(err)
			}
			return nil
		}
	}
}

// retainLostLanes moves the lanes of the purged state to lostLanes.
func (m *mirror) retainLostLanes() {
	c, err := m.table.decodeContent()
	if err != nil {
		return // what was stored was not a state
	}
	m.recordSeen(c)
	for _, l := range c.lanes {
		m.lostLanes[sinkLane{l.sink, l.lane}] = l.position
	}
}

// tailStart returns the lanes of a sink that have to be fenced, each with the position from which its tail has to be read.
func (m *mirror) tailStart(name string, c stateContent) tailStart {
	lanes := map[sinks.Lane]sinks.LanePosition{}
	for l, position := range m.lostLanes {
		if l.sink == name {
			lanes[l.lane] = position
		}
	}
	for _, l := range c.lanes {
		if l.sink == name {
			lanes[l.lane] = l.position
		}
	}
	return tailStart{lanes, c.carried[name]}
}

// RefusedError is returned for a state that this process must not use. It persists until an operator acts.
type RefusedError struct {
	Reason string
	Remedy string
}

func (e *RefusedError) Error() string { return e.Reason + ": " + e.Remedy }

// Problem is what the error stands for.
func (e *RefusedError) Problem() condition.Problem {
	return condition.Problem{Code: condition.StateRefused, Cause: e.Reason, Remedy: e.Remedy}
}

func malformedState(err error) error {
	return &RefusedError{
		Reason: "the stored entries are not a replicated state: " + err.Error(),
		Remedy: "give the state a topic or stream of its own, or empty it with exporter state reset",
	}
}

// validate refuses a state of another deployment, of another Lease, of another cluster (each "" if not known), of another
// name of the cluster, or of a newer format.
func (o *Options) validate(c *stateContent, deployment, cluster string) error {
	m, lease := c.meta, o.Lease
	switch {
	case m.version > Version:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state has format %d, written by a newer exporter; this one knows format %d", m.version, Version),
			Remedy: "run the newer exporter, or give this one another state.name",
		}
	case deployment != "" && c.deployment.id != "" && deployment != c.deployment.id:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state belongs to %s, and this exporter is of deployment %s", c.describeOwner(), deployment),
			Remedy: "give each deployment a state.name of its own; to hand the state to this deployment, stop the other one and run " +
				"exporter state reset; to let this exporter continue the other deployment, delete its journal",
		}
	case m.version == 0:
		return nil
	case m.lease != "" && lease != "" && m.lease != lease:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state belongs to the exporters of the Lease %s, last %q, and this one competes for %s",
				m.lease, m.owner.Identity, lease),
			Remedy: "give each deployment a state.name of its own; where only the Lease was renamed, run once without election",
		}
	case cluster != "" && m.cluster != "" && cluster != m.cluster:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state is of the cluster %s, and this one is %s", m.cluster, cluster),
			Remedy: "give each cluster a state.name of its own, or empty it with exporter state reset",
		}
	case c.name != nil && cmp.Or(*c.name, m.cluster) != cmp.Or(o.ClusterName, m.cluster):
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state was written under the cluster name %q, and cluster.name is %q: the keys and "+
				"IDs of all records begin with it", cmp.Or(*c.name, m.cluster), cmp.Or(o.ClusterName, m.cluster)),
			Remedy: "set cluster.name back; or, for another name, give the exporters another state.name and new journals: everything " +
				"is sent again under the new name, and what was sent under the old one stays in the destinations",
		}
	}
	return nil
}
