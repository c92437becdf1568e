package nats

import (
	"context"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// Tail is [sinks.Fenced.Tail]. All lanes are in one stream; of one of many it tells what belongs to that.
func (s *Sink) Tail(ctx context.Context, lanes map[sinks.Lane]sinks.Place, emitted func(sinks.Lane, sinks.Emitted) error) error {
	for lane, from := range lanes {
		if err := s.tail(ctx, lane, from, func(e sinks.Emitted) error { return emitted(lane, e) }); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sink) tail(ctx context.Context, lane sinks.Lane, from sinks.Place, emitted func(sinks.Emitted) error) error {
	belongs, known := membersOf(lane)
	if !known || s.cfg.Mode == modeCore {
		return nil
	}
	l, err := s.reach(ctx)
	if err != nil {
		return err
	}
	s.tenure.mu.Lock()
	end, direct := s.tenure.end, s.tenure.direct
	s.tenure.mu.Unlock()
	begin := uint64(max(from, 1))
	if begin > end+1 { // the stream was made anew
		begin = 1
	}
	return s.stream(l).Read(ctx, begin, end, direct, func(m stream.Message) error {
		e, ours := format.ReadEmitted(m.Data, func(name string) string { return beside(m, name) })
		if !ours || strings.HasPrefix(m.Subject, s.cfg.fencePrefix()) || !belongs(e) {
			return nil
		}
		return emitted(sinks.Emitted{Emitted: e, Place: sinks.Place(m.Sequence)})
	})
}

// beside returns what stands in the headers, see [format.ReadEmitted].
func beside(m stream.Message, name string) string {
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

// membersOf says what belongs to a lane, also to one of a number of lanes that was configured once. A control record, which does
// not tell its namespace, is told of in each.
func membersOf(lane sinks.Lane) (belongs func(event.Emitted) bool, known bool) {
	if lane == whole {
		return func(event.Emitted) bool { return true }, true
	}
	index, number, hashed := strings.Cut(string(lane), "/")
	i, err1 := strconv.ParseUint(index, 10, 32)
	n, err2 := strconv.ParseUint(number, 10, 32)
	if !hashed || err1 != nil || err2 != nil || i >= n {
		return nil, false
	}
	return func(e event.Emitted) bool {
		if e.Type.Control() {
			return true
		}
		c := event.Change{Resource: e.Resource, Name: e.Key}
		if namespace, name, namespaced := strings.Cut(e.Key, "/"); namespaced {
			c.Namespace, c.Name = namespace, name
		}
		return sinks.KeyHash(&c)%n == i
	}, true
}
