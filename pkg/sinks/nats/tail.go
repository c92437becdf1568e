package nats

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// readTails reads lanes back from the stream in one pass, from the sequence first to the end of the stream when the term
// began. It calls emitted for each message of the deployment, once for each lane that the message may belong to.
func readTails(ctx context.Context, cfg Config, l *connection.Link, t *term, lanes []laneTail, first uint64, direct bool,
	emitted func(sinks.Lane, sinks.Emitted) error) error {
	return cfg.streamClient(l).ReadRange(ctx, first, t.endSequence, direct, func(m stream.Message) error {
		e, ours := format.ReadEmitted(m.Data, factHeader(m))
		if !ours || !t.hasPublished(m) || strings.HasPrefix(m.Subject, cfg.fencePrefix()) {
			return nil
		}
		hash := objectHash(e)
		for _, lane := range lanes {
			if !lane.mayContain(m.Sequence, hash, e.Type) {
				continue
			}
			if err := emitted(lane.lane, sinks.Emitted{EmittedRecord: e, Position: sinks.LanePosition(m.Sequence)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// factHeader returns the lookup of headers for [format.ReadEmitted].
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
		case format.HeaderSnapshot:
			return m.Header(headerSnapshot)
		}
		return ""
	}
}

// laneTail is a lane to read back. Its name has the number of lanes at the time it was recorded, which may differ from now.
type laneTail struct {
	lane      sinks.Lane
	index, of uint64 // holds the objects with a hash of index modulo of; the single lane is 0 of 1
	from      uint64 // first sequence to read
}

// mayContain reports whether a message of an object belongs to the lane. A control record does not contain its namespace, so
// it may belong to any lane.
func (t laneTail) mayContain(sequence, hash uint64, kind event.Type) bool {
	return sequence >= t.from && (kind.IsControl() || hash%t.of == t.index)
}

// planTails returns the lanes that can be read from a stream that ends at a sequence, and the first sequence to read.
func planTails(lanes map[sinks.Lane]sinks.LanePosition, end uint64) (all []laneTail, first uint64) {
	first = math.MaxUint64
	for lane, position := range lanes {
		index, of, known := parseLane(lane)
		if !known {
			continue
		}
		from := uint64(max(position, 1))
		if from > end+1 { // the stream was recreated
			from = 1
		}
		all, first = append(all, laneTail{lane, index, of, from}), min(first, from)
	}
	return all, first
}

// parseLane parses the name of a lane.
func parseLane(lane sinks.Lane) (index, of uint64, known bool) {
	if lane == singleLane {
		return 0, 1, true
	}
	left, right, _ := strings.Cut(string(lane), "/")
	index, err1 := strconv.ParseUint(left, 10, 32)
	of, err2 := strconv.ParseUint(right, 10, 32)
	return index, of, err1 == nil && err2 == nil && index < of
}

// objectHash returns [sinks.KeyHash] of the object of a message.
func objectHash(e event.EmittedRecord) uint64 {
	cluster, _, _ := strings.Cut(e.ID, "/")
	c := event.Change{Type: e.Type, Cluster: cluster, Resource: e.Resource, Name: e.Key}
	if namespace, name, namespaced := strings.Cut(e.Key, "/"); namespaced {
		c.Namespace, c.Name = namespace, name
	}
	return sinks.KeyHash(&c)
}
