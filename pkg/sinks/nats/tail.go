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

// Tail is [sinks.Fenced.Tail]. All lanes are in one stream, which is read once, however many they are.
func (s *Sink) Tail(ctx context.Context, lanes map[sinks.Lane]sinks.Place, emitted func(sinks.Lane, sinks.Emitted) error) error {
	t := s.tenure.Load()
	if t == nil || s.cfg.Mode == modeCore {
		return nil
	}
	tails, first := tailsOf(lanes, t.end)
	if first > t.end {
		return nil
	}
	l, err := s.reach(ctx)
	if err != nil {
		return err
	}
	return s.stream(l).Read(ctx, first, t.end, t.direct, func(m stream.Message) error {
		e, ours := format.ReadEmitted(m.Data, beside(m))
		if !ours || strings.HasPrefix(m.Subject, s.cfg.fencePrefix()) {
			return nil
		}
		hash := hashOf(e)
		for _, t := range tails { // a control record, which does not tell its namespace, may be of any lane
			if m.Sequence < t.from || !e.Type.Control() && hash%t.of != t.index {
				continue
			}
			if err := emitted(t.lane, sinks.Emitted{Emitted: e, Place: sinks.Place(m.Sequence)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// beside returns what stands in the headers of a message, see [format.ReadEmitted].
func beside(m stream.Message) func(name string) string {
	return func(name string) string {
		switch name {
		case format.BesideChange:
			return m.Header(headerChange)
		case format.BesideID:
			return m.Header(headerID)
		case format.BesideType:
			return m.Header(headerType)
		case format.BesideCluster:
			return m.Header(headerCluster)
		case format.BesideKey:
			return m.Header(headerKey)
		}
		return ""
	}
}

// tail is a lane that is read back, of the number of lanes that there was when it was named.
type tail struct {
	lane      sinks.Lane
	index, of uint64 // its objects are those whose hash is index modulo of; the one of everything is 0 of 1
	from      uint64 // sequence
}

// tailsOf returns the lanes that can be read, in a stream that ends there, and where the first of them begins.
func tailsOf(lanes map[sinks.Lane]sinks.Place, end uint64) (all []tail, first uint64) {
	first = math.MaxUint64
	for lane, place := range lanes {
		index, of, known := objectsOf(lane)
		if !known {
			continue
		}
		from := uint64(max(place, 1))
		if from > end+1 { // the stream was made anew
			from = 1
		}
		all, first = append(all, tail{lane, index, of, from}), min(first, from)
	}
	return all, first
}

// objectsOf reads a lane's name.
func objectsOf(lane sinks.Lane) (index, of uint64, known bool) {
	if lane == whole {
		return 0, 1, true
	}
	left, right, _ := strings.Cut(string(lane), "/")
	index, err1 := strconv.ParseUint(left, 10, 32)
	of, err2 := strconv.ParseUint(right, 10, 32)
	return index, of, err1 == nil && err2 == nil && index < of
}

// hashOf is [sinks.KeyHash] of the object that a message is about.
func hashOf(e event.Emitted) uint64 {
	c := event.Change{Resource: e.Resource, Name: e.Key}
	if namespace, name, namespaced := strings.Cut(e.Key, "/"); namespaced {
		c.Namespace, c.Name = namespace, name
	}
	return sinks.KeyHash(&c)
}
