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
	s.tenure.mu.Lock()
	end, direct := s.tenure.end, s.tenure.direct
	s.tenure.mu.Unlock()
	t, first := newTails(lanes, end)
	if first > end || s.cfg.Mode == modeCore {
		return nil
	}
	l, err := s.reach(ctx)
	if err != nil {
		return err
	}
	return s.stream(l).Read(ctx, first, end, direct, func(m stream.Message) error {
		e, ours := format.ReadEmitted(m.Data, beside(m))
		if !ours || strings.HasPrefix(m.Subject, s.cfg.fencePrefix()) {
			return nil
		}
		return t.each(e, m.Sequence, func(lane sinks.Lane) error {
			return emitted(lane, sinks.Emitted{Emitted: e, Place: sinks.Place(m.Sequence)})
		})
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

// share is a lane by what belongs to it: the objects whose hash is index modulo of. The one of everything is 0 of 1.
type share struct{ index, of uint64 }

// tails are the lanes that are read back, also those of a number of lanes that was configured once.
type tails struct {
	lanes map[share]tailOf
	sizes map[uint64]bool // that the lanes are shares of
}

type tailOf struct {
	lane sinks.Lane
	from uint64 // sequence
}

// newTails returns the lanes that can be, in a stream that ends there, and where the first of them begins.
func newTails(lanes map[sinks.Lane]sinks.Place, end uint64) (t tails, first uint64) {
	t, first = tails{map[share]tailOf{}, map[uint64]bool{}}, math.MaxUint64
	for lane, place := range lanes {
		sh, known := shareOf(lane)
		if !known {
			continue
		}
		from := uint64(max(place, 1))
		if from > end+1 { // the stream was made anew
			from = 1
		}
		t.lanes[sh], t.sizes[sh.of], first = tailOf{lane, from}, true, min(first, from)
	}
	return t, first
}

// shareOf reads a lane's name.
func shareOf(lane sinks.Lane) (sh share, known bool) {
	if lane == whole {
		return share{0, 1}, true
	}
	index, number, _ := strings.Cut(string(lane), "/")
	i, err1 := strconv.ParseUint(index, 10, 32)
	n, err2 := strconv.ParseUint(number, 10, 32)
	return share{i, n}, err1 == nil && err2 == nil && i < n
}

// each calls tell for the lanes that a message belongs to. A control record, which does not tell its namespace, is told of
// in all.
func (t tails) each(e event.Emitted, sequence uint64, tell func(sinks.Lane) error) error {
	if e.Type.Control() {
		for _, one := range t.lanes {
			if err := one.tell(sequence, tell); err != nil {
				return err
			}
		}
		return nil
	}
	c := event.Change{Resource: e.Resource, Name: e.Key}
	if namespace, name, namespaced := strings.Cut(e.Key, "/"); namespaced {
		c.Namespace, c.Name = namespace, name
	}
	hash := sinks.KeyHash(&c)
	for size := range t.sizes {
		if err := t.lanes[share{hash % size, size}].tell(sequence, tell); err != nil {
			return err
		}
	}
	return nil
}

// tell calls what it is given for a message of the lane. The zero value is no lane.
func (t tailOf) tell(sequence uint64, tell func(sinks.Lane) error) error {
	if t.from == 0 || sequence < t.from {
		return nil
	}
	return tell(t.lane)
}
