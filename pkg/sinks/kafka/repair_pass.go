package kafka

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// maxStaleKeys bounds the stale keys that are held while a partition is read. A partition with more is read several times,
// for a range of keys each. // I6
const maxStaleKeys = 100_000

var errTooManyStaleKeys = errors.New("more stale keys than can be held at once")

// repairPass repairs the partitions of one topic. It remembers those that are done between attempts. One goroutine uses it.
type repairPass struct {
	repairer   *repairer
	repair     *repair
	seed       maphash.Seed
	done       map[int32]bool // by partition
	tombstones int            // written
}

func newRepairPass(r *repairer, one *repair) *repairPass {
	return &repairPass{repairer: r, repair: one, seed: maphash.MakeSeed(), done: map[int32]bool{}}
}

// repairTopic repairs all partitions that are not done yet, as far as possible, and returns the first error.
func (p *repairPass) repairTopic(ctx context.Context) (first error) {
	t := p.repairer.topics.topicByName(p.repair.topic)
	layout, err := p.repairer.topics.refreshLayout(ctx, t, nil)
	if err != nil {
		return err
	}
	for i := range layout.Leads {
		n := int32(i)
		if p.done[n] {
			continue
		}
		if err := p.repairPartition(ctx, cluster.Partition{Topic: t.name, Index: n}, len(layout.Leads)); err == nil {
			p.done[n] = true
		} else if first == nil {
			first = err
		}
	}
	return first
}

// repairPartition writes tombstones to one of count partitions. When it has too many stale keys, the range of hashes is
// halved.
func (p *repairPass) repairPartition(ctx context.Context, at cluster.Partition, count int) error {
	const hashBits = 64
	for prefix, bits := uint64(0), 0; prefix < 1<<bits; {
		err := p.repairKeyRange(ctx, at, count, func(key []byte) bool { return maphash.Bytes(p.seed, key)>>(hashBits-bits) == prefix })
		if errors.Is(err, errTooManyStaleKeys) {
			prefix, bits = prefix*2, bits+1
			continue
		}
		if err != nil {
			return err
		}
		prefix++
	}
	return nil
}

// repairKeyRange is repairPartition for the keys that contains accepts. It reads most of the partition without the lock,
// and the records that were written meanwhile with it, so that the lane is blocked for a short time only.
func (p *repairPass) repairKeyRange(ctx context.Context, at cluster.Partition, count int, contains func(key []byte) bool) error {
	stale := map[string]staleKey{}
	span := &cluster.Span{Partition: at, Each: func(r *protocol.Record) error {
		if !contains(r.Key) {
			return nil
		}
		if p.updateStaleKeys(stale, string(r.Key), r); len(stale) > p.repairer.maxKeys {
			return errTooManyStaleKeys
		}
		return nil
	}}
	if err := p.repairer.reader.ReadSpan(ctx, span); err != nil || len(stale) == 0 {
		return err
	}
	p.repairer.trackWrites(at.Topic, 1)
	defer p.repairer.trackWrites(at.Topic, -1)
	unlock, err := p.repairer.locks.lockPartition(ctx, at)
	if err != nil {
		return err
	}
	defer unlock()
	span.Known = false
	if err := p.repairer.reader.ReadSpan(ctx, span); err != nil {
		return err
	}
	return p.writeTombstones(ctx, at, count, stale)
}

// writeTombstones requires the lock of the partition.
func (p *repairPass) writeTombstones(ctx context.Context, at cluster.Partition, count int, stale map[string]staleKey) error {
	l, err := p.repairer.lanes.laneForPartition(at, count)
	if err != nil {
		return err
	}
	dead := make([]sinks.Message, 0, len(stale))
	for _, key := range slices.Sorted(maps.Keys(stale)) {
		dead = append(dead, sinks.Message{Change: p.newTombstone(key, stale[key])})
	}
	written, err := l.writeTombstones(ctx, dead)
	p.tombstones += written
	return err
}

// staleKey is an object that a topic still has and the snapshot does not.
type staleKey struct{ uid, version string }

// updateStaleKeys takes the newest record of a key into account. The key is stale if the record is ours, and of an object
// that the snapshot covers, but not of this snapshot, read before its list, and in a version not newer than that. This is
// rule 8 of docs/consuming.md; where clocks decide, the record must be older than the beginning of the snapshot.
func (p *repairPass) updateStaleKeys(stale map[string]staleKey, key string, r *protocol.Record) {
	delete(stale, key)
	c := p.repair.snapshot
	if r.Value == nil || r.HeaderValue("cluster") != c.Cluster || r.HeaderValue("resource") != c.Resource.String() || !p.coversKey(key) {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, r.HeaderValue("observedAt"))
	if err != nil || r.HeaderValue("snapshot") == c.Snapshot.ID {
		return
	}
	id, ours := strings.CutPrefix(r.HeaderValue("id"), c.Cluster+"/")
	parts := strings.Split(id, "/") // uid, resourceVersion, type
	if !ours || len(parts) < 3 {
		return
	}
	if order, ordered := resourceversion.Compare(parts[1], c.Snapshot.Position); !ordered || order > 0 {
		return
	}
	if order, _ := resourceversion.Compare(readVersion(r, parts[1]), c.Snapshot.Position); order > 0 || order == 0 && !at.Before(p.repair.startedAt) {
		return
	}
	stale[key] = staleKey{parts[0], parts[1]}
}

// readVersion returns the version of the cluster at which the object of a record was read; "" if it is not known.
func readVersion(r *protocol.Record, version string) string {
	listed := r.HeaderValue("listVersion")
	switch event.Type(r.HeaderValue("type")) {
	case event.Snapshot, event.Sync: // of a list in any case
		return listed
	default:
		return cmp.Or(listed, version)
	}
}

// coversKey reports whether the snapshot covers the object of a key.
func (p *repairPass) coversKey(key string) bool {
	prefix := p.repair.snapshot.Key() // of a control record: cluster/group/resource/namespace/, or …/resource// for all namespaces
	if p.repair.snapshot.Namespace == "" {
		prefix = strings.TrimSuffix(prefix, "/")
	}
	return strings.HasPrefix(key, prefix) && strings.Count(key, "/") == 4 && !strings.HasSuffix(key, "/")
}

// newTombstone returns the delete of an object that was not observed.
func (p *repairPass) newTombstone(key string, stale staleKey) *event.Change {
	snapshot := p.repair.snapshot
	c := &event.Change{
		Type: event.Deleted, Cluster: snapshot.Cluster, Resource: snapshot.Resource, UID: stale.uid, ResourceVersion: stale.version,
		ObservedAt: snapshot.ObservedAt, Coalesced: true, FinalStateUnknown: true, Snapshot: &event.SnapshotInfo{ID: snapshot.Snapshot.ID},
		Pass: snapshot.Snapshot.ID, // which found that the object is gone
	}
	parts := strings.Split(key, "/") // cluster, group, resource, namespace, name
	c.Namespace, c.Name = parts[len(parts)-2], parts[len(parts)-1]
	return c
}
