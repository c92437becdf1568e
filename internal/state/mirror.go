package state

import (
	"context"
	"fmt"
	"log/slog"

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
	lanes map[sinkLane]uint64 // the numbers under which the state has them
	// lostLanes are the lanes of a state that was purged or replaced. They still have to be fenced: an older process may
	// have messages on their way through them.
	lostLanes map[sinkLane]sinks.LanePosition
}

func newMirror(log *slog.Logger) *mirror {
	return &mirror{log: log, table: newTable(), lanes: map[sinkLane]uint64{}, lostLanes: map[sinkLane]sinks.LanePosition{}}
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
	return c, nil
}

// readStored applies everything that the store holds beyond the last read.
func (m *mirror) readStored(ctx context.Context) error {
	for {
		var bad error
		reset, err := m.store.Read(ctx, func(e sinks.StateEntry) error {
			m.table.applyEntry(e)
			if len(e.Key) > 0 && e.Key[0] == keyLane && e.Value != nil && bad == nil {
				bad = m.recordLane(e)
			}
			return nil
		})
		switch {
		case err != nil:
			return fmt.Errorf("read the replicated state: %w", err)
		case reset:
			m.log.Warn("the replicated state was purged or replaced; reading it again from the start")
			m.retainLostLanes()
			m.table, m.lanes = newTable(), map[sinkLane]uint64{}
		case bad != nil:
			return malformedState(bad)
		default:
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
	for _, l := range c.lanes {
		m.lostLanes[sinkLane{l.sink, l.lane}] = l.position
	}
}

func (m *mirror) recordLane(e sinks.StateEntry) error {
	number, _, err := decodeKey(string(e.Key))
	if err != nil {
		return err
	}
	sink, lane, err := decodeLane(string(e.Value))
	if err == nil {
		m.lanes[sinkLane{sink, lane}] = number
	}
	return err
}

// lanesToFence returns the lanes of a sink, each with the position from which its tail has to be read.
func (m *mirror) lanesToFence(name string, c stateContent) map[sinks.Lane]sinks.LanePosition {
	lanes := map[sinks.Lane]sinks.LanePosition{}
	for l, position := range m.lostLanes {
		if l.sink == name {
			lanes[l.lane] = position
		}
	}
	for l, number := range m.lanes {
		if l.sink == name {
			lanes[l.lane] = c.lanes[number].position
		}
	}
	return lanes
}

// RefusedError is returned for a state that this process must not use. It persists until an operator acts.
type RefusedError struct {
	Reason string
	Remedy string
}

func (e *RefusedError) Error() string { return e.Reason + ": " + e.Remedy }

func malformedState(err error) error {
	return &RefusedError{
		Reason: "the stored entries are not a replicated state: " + err.Error(),
		Remedy: "give the state a topic or stream of its own, or empty it with exporter state reset",
	}
}

// validate refuses a state of another Lease, of another cluster ("" if not known), or of a newer format.
func (c *stateContent) validate(lease, cluster string) error {
	m := c.meta
	switch {
	case m.version > Version:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state has format %d, written by a newer exporter; this one knows format %d", m.version, Version),
			Remedy: "run the newer exporter, or give this one another state.name",
		}
	case m.version == 0:
		return nil
	case m.lease != "" && lease != "" && m.lease != lease:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state belongs to the exporters of the Lease %s, and this one competes for %s", m.lease, lease),
			Remedy: "give each deployment a state.name of its own; where only the Lease was renamed, run once without election",
		}
	case cluster != "" && m.cluster != "" && cluster != m.cluster:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state is of the cluster %s, and this one is %s", m.cluster, cluster),
			Remedy: "give each cluster a state.name of its own, or empty it with exporter state reset",
		}
	}
	return nil
}
