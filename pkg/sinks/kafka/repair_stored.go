package kafka

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// appendState puts what is due behind the states of lanes; docs/journal-format.md says how. Without anything it changes
// nothing.
func (r *repairer) appendState(states []byte) []byte {
	if r == nil {
		return states
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return states
	}
	states[0] = stateFormatWithRepairs
	b := binary.AppendUvarint(states, uint64(len(r.pending)))
	for _, name := range slices.Sorted(maps.Keys(r.pending)) {
		b = r.pending[name].appendEncoded(b)
	}
	return b
}

func (one *repair) appendEncoded(b []byte) []byte {
	c, ended := one.snapshot, uint64(0)
	if one.ended {
		ended = 1
	}
	b = binary.AppendUvarint(b, ended)
	b = binary.AppendUvarint(b, one.endOffset)
	b = binary.AppendUvarint(b, uint64(one.startedAt.UnixNano()))
	b = binary.AppendUvarint(b, uint64(c.ObservedAt.UnixNano()))
	for _, s := range []string{one.topic, c.Cluster, c.Resource.Group, c.Resource.Version, c.Resource.Resource, c.Resource.Kind, c.Namespace,
		c.Snapshot.ID, c.Snapshot.Position} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

// decodeRepairs reads what appendState has written.
func decodeRepairs(r *stateReader) (all []*repair) {
	for n := r.readUvarint(); n > 0 && !r.failed; n-- {
		one := &repair{ended: r.readUvarint() == 1, endOffset: r.readUvarint(), startedAt: time.Unix(0, int64(r.readUvarint())).UTC()}
		text := func() string { return string(r.readBytes()) }
		observed := time.Unix(0, int64(r.readUvarint())).UTC()
		one.topic = text()
		one.snapshot = &event.Change{
			Type: event.SnapshotEnd, ObservedAt: observed, Cluster: text(),
			Resource:  event.Resource{Group: text(), Version: text(), Resource: text(), Kind: text()},
			Namespace: text(), Snapshot: &event.SnapshotInfo{ID: text(), Position: text()},
		}
		all = append(all, one)
	}
	return all
}
