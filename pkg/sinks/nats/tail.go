package nats

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// ReadTail is [sinks.Fenced.ReadTail]. All lanes are in one stream, which is read once, however many they are.
func (s *Sink) ReadTail(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition, emitted func(sinks.Lane, sinks.Emitted) error) error {
	t := s.term.Load()
	if t == nil || s.cfg.Mode == modeCore {
		return nil
	}
	tails, first := planTails(lanes, t.endSequence)
	if first > t.endSequence {
		return nil
	}
	l, err := s.connectedLink(ctx)
	if err != nil {
		return err
	}
	return s.streamClient(l).ReadRange(ctx, first, t.endSequence, t.directAccess, func(m stream.Message) error {
		e, ours := format.ReadEmitted(m.Data, factHeader(m))
		if !ours || strings.HasPrefix(m.Subject, s.cfg.fencePrefix()) {
			return nil
		}
		hash := objectHash(e)
		for _, t := range tails { // a control record, which does not tell its namespace, may be of any lane
			if m.Sequence < t.from || !e.Type.IsControl() && hash%t.of != t.index {
				continue
			}
			if err := emitted(t.lane, sinks.Emitted{EmittedRecord: e, Position: sinks.LanePosition(m.Sequence)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// factHeader returns what stands in the headers of a message, see [format.ReadEmitted].
func factHeader(m stream.Message) func(name string) string {
	return func(name string) string {
		switch name {
		case format.HeaderChange:
			return m.Header(headerChange)
		case format.HeaderID:
			return m.Header(headerID)
		case format.HeaderType:
			return m.Header(headerType)
		case format.HeaderCluster:
			return m.Header(headerCluster)
		case format.HeaderKey:
			return m.Header(headerKey)
		}
		return ""
	}
}

// laneTail is a lane that is read back, of the number of lanes that there was when it was named.
type laneTail struct {
	lane      sinks.Lane
	index, of uint64 // its objects are those whose hash is index modulo of; the one of everything is 0 of 1
	from      uint64 // sequence
}

// planTails returns the lanes that can be read, in a stream that ends there, and where the first of them begins.
func planTails(lanes map[sinks.Lane]sinks.LanePosition, end uint64) (all []laneTail, first uint64) {
	first = math.MaxUint64
	for lane, place := range lanes {
		index, of, known := parseLane(lane)
		if !known {
			continue
		}
		from := uint64(max(place, 1))
		if from > end+1 { // the stream was made anew
			from = 1
		}
		all, first = append(all, laneTail{lane, index, of, from}), min(first, from)
	}
	return all, first
}

// parseLane reads a lane's name.
func parseLane(lane sinks.Lane) (index, of uint64, known bool) {
	if lane == singleLane {
		return 0, 1, true
	}
	left, right, _ := strings.Cut(string(lane), "/")
	index, err1 := strconv.ParseUint(left, 10, 32)
	of, err2 := strconv.ParseUint(right, 10, 32)
	return index, of, err1 == nil && err2 == nil && index < of
}

// objectHash is [sinks.KeyHash] of the object that a message is about.
func objectHash(e event.EmittedRecord) uint64 {
	c := event.Change{Resource: e.Resource, Name: e.Key}
	if namespace, name, namespaced := strings.Cut(e.Key, "/"); namespaced {
		c.Namespace, c.Name = namespace, name
	}
	return sinks.KeyHash(&c)
}
