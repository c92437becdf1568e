package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	kproto "github.com/segmentio/kafka-go/protocol"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

const (
	// repairRetryDelay is how long a repair that did not succeed waits for the next attempt.
	repairRetryDelay = 5 * time.Second
	// maxConcurrentRepairs is how many topics are read back at the same time.
	maxConcurrentRepairs = 2
	// maxStaleKeys bounds the keys that are remembered while a partition is read back: it is read several times where it has
	// more. // I6
	maxStaleKeys = 100_000
)

// repair is what is due for a snapshot: when everything up to its end is accepted, keys that it lacks get their tombstones.
type repair struct {
	topic     string
	snapshot  *event.Change // its end or, before that is accepted, its beginning
	startedAt time.Time     // when the snapshot began, by the exporter's clock
	ended     bool
	endOffset uint64 // offset of its end
	running   bool
	lastError string // it does not succeed; "" while it does
}

// snapshotScope is what a snapshot speaks of, in a topic.
func snapshotScope(topic string, c *event.Change) string {
	return topic + " " + c.Cluster + " " + c.Key()
}

// repairer are the snapshots of topics that repair themselves. They outlive the process with the state of the sink. nil: none
// does. It is safe for concurrent use.
type repairer struct {
	sink       *Sink
	retryDelay time.Duration
	maxKeys    int           // keys to remember
	readSlots  chan struct{} // has room for those that read

	mu             sync.Mutex
	pending        map[string]*repair                  // by scope
	partitionLocks map[cluster.Partition]chan struct{} // hold a token while somebody writes there: a lane or a repair
	activeWrites   map[string]int                      // by topic: partitions to which tombstones are being written
}

func newRepairer(s *Sink) *repairer {
	return &repairer{
		sink: s, retryDelay: repairRetryDelay, maxKeys: maxStaleKeys, readSlots: make(chan struct{}, maxConcurrentRepairs),
		pending: map[string]*repair{}, partitionLocks: map[cluster.Partition]chan struct{}{}, activeWrites: map[string]int{},
	}
}

// lockPartition waits until nobody else writes to a partition, and returns what ends that.
func (r *repairer) lockPartition(ctx context.Context, p cluster.Partition) (leave func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	r.mu.Lock()
	one := r.partitionLocks[p]
	if one == nil {
		one = make(chan struct{}, 1)
		r.partitionLocks[p] = one
	}
	r.mu.Unlock()
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// isWritingTo says whether tombstones are being written to a topic.
func (r *repairer) isWritingTo(topic string) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.activeWrites[topic] > 0
}

func (r *repairer) trackWrites(topic string, more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.activeWrites[topic] += more
}

// recordAccepted notes which snapshots begin and end among messages that a topic has taken.
func (r *repairer) recordAccepted(topic string, messages []sinks.Message) {
	if r == nil {
		return
	}
	for _, m := range messages {
		switch m.Change.Type {
		case event.SnapshotBegin:
			r.startSnapshot(topic, m.Change)
		case event.SnapshotEnd:
			r.endSnapshot(topic, m)
		}
	}
}

// restorePending takes up what the process before has left. What is due already begins with the next state that is stored, of which
// there is one soon.
func (r *repairer) restorePending(left []*repair) {
	if r == nil || len(left) == 0 {
		return
	}
	r.mu.Lock()
	for _, one := range left {
		r.pending[snapshotScope(one.topic, one.snapshot)] = one
	}
	r.mu.Unlock()
	r.sink.background.Go(func() { _ = r.sink.producers.saveStates(r.sink.runCtx) })
}

// startSnapshot notes that a snapshot has begun. What an earlier one of the same objects lacked, this one lacks too.
func (r *repairer) startSnapshot(topic string, c *event.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[snapshotScope(topic, c)] = &repair{topic: topic, snapshot: c.Clone(), startedAt: c.ObservedAt}
}

func (r *repairer) endSnapshot(topic string, m sinks.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.pending[snapshotScope(topic, m.Change)]
	if one == nil {
		r.sink.log.Warn("a topic is not repaired: the snapshot began in another process, or before the configuration was changed; keys that the snapshot lacks stay",
			"topic", topic, "resource", m.Change.Resource.String(), "namespace", m.Change.Namespace)
		return
	}
	if !one.running {
		one.snapshot, one.ended, one.endOffset = m.Change.Clone(), true, m.Offset
	}
}

// startDue begins what is due now that every message up to low is accepted, and none of the process before is published any
// more.
func (r *repairer) startDue(low uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, one := range r.pending {
		if one.ended && one.endOffset <= low && !one.running {
			one.running = true
			r.sink.background.Go(func() { r.runRepair(r.sink.runCtx, name, one) })
		}
	}
}

// runRepair repairs a topic, and tries again until that has succeeded or another snapshot has begun.
func (r *repairer) runRepair(ctx context.Context, name string, one *repair) {
	p := &repairPass{repairer: r, repair: one, seed: maphash.MakeSeed(), done: map[int32]bool{}}
	for current := true; current; current = r.isCurrent(name, one) {
		select {
		case r.readSlots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := p.repairTopic(ctx)
		if err == nil {
			r.finishRepair(ctx, name, p)
		}
		<-r.readSlots
		if err == nil || ctx.Err() != nil {
			return
		}
		r.logFailure(one, err)
		select {
		case <-time.After(r.retryDelay):
		case <-ctx.Done():
			return
		}
	}
}

// isCurrent says whether no other snapshot of the same objects has begun.
func (r *repairer) isCurrent(name string, one *repair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[name] == one
}

// finishRepair forgets a repair that has succeeded, here and for the next process.
func (r *repairer) finishRepair(ctx context.Context, name string, p *repairPass) {
	r.mu.Lock()
	if r.pending[name] == p.repair {
		delete(r.pending, name)
	}
	r.mu.Unlock()
	_ = r.sink.producers.saveStates(ctx) // else the next process looks again, and finds nothing
	r.sink.log.Info("a topic is repaired: keys that the snapshot lacks have their tombstones", "topic", p.repair.topic,
		"resource", p.snapshot.Resource.String(), "namespace", p.snapshot.Namespace, "keys", p.tombstones)
}

// logFailure says why a repair does not succeed, when that changes.
func (r *repairer) logFailure(one *repair, err error) {
	why := fmt.Sprintf("topic %q is not repaired yet, keys of deleted objects stay: %v", one.topic, err)
	r.mu.Lock()
	news := why != one.lastError
	one.lastError = why
	r.mu.Unlock()
	if news {
		r.sink.log.Warn("a topic is not repaired yet: keys of deleted objects stay", "topic", one.topic, "error", err)
	}
}

// Warnings is [sinks.Cautious.Warnings].
func (s *Sink) Warnings() (all []string) {
	if s.repairer == nil {
		return nil
	}
	s.repairer.mu.Lock()
	defer s.repairer.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.repairer.pending)) {
		if why := s.repairer.pending[name].lastError; why != "" && !slices.Contains(all, why) {
			all = append(all, why)
		}
	}
	return all
}

// repairPass is a way through the partitions of a topic.
type repairPass struct {
	*repairer
	*repair
	seed       maphash.Seed
	done       map[int32]bool // by partition
	tombstones int            // that were given tombstones
}

// repairTopic repairs the partitions that are not repaired yet, as far as they can be.
func (p *repairPass) repairTopic(ctx context.Context) (first error) {
	t := p.sink.topicByName(p.repair.topic)
	layout, err := p.sink.refreshLayout(ctx, t, nil)
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

// repairPartition gives tombstones to the keys of one partition of so many. It is read in several parts where it has very many
// ghosts.
func (p *repairPass) repairPartition(ctx context.Context, at cluster.Partition, count int) error {
	const all = 64 // bits of a hash
	for part, bits := uint64(0), 0; part < 1<<bits; {
		err := p.repairKeyRange(ctx, at, count, func(key []byte) bool { return maphash.Bytes(p.seed, key)>>(all-bits) == part })
		if errors.Is(err, errTooManyStaleKeys) {
			part, bits = part*2, bits+1
			continue
		}
		if err != nil {
			return err
		}
		part++
	}
	return nil
}

var errTooManyStaleKeys = errors.New("more keys than can be remembered at once")

// repairKeyRange is partition for some keys.
func (p *repairPass) repairKeyRange(ctx context.Context, at cluster.Partition, count int, has func(key []byte) bool) error {
	ghosts := map[string]staleKey{}
	one := &cluster.Span{Partition: at, Each: func(r *kproto.Record) error {
		key, err := protocol.ReadBytes(r.Key)
		if err != nil || !has(key) {
			return err
		}
		if p.updateStaleKeys(ghosts, string(key), r); len(ghosts) > p.maxKeys {
			return errTooManyStaleKeys
		}
		return nil
	}}
	if err := p.sink.cluster.ReadSpans(ctx, []*cluster.Span{one}); err != nil || len(ghosts) == 0 {
		return err
	}
	p.trackWrites(at.Topic, 1)
	defer p.trackWrites(at.Topic, -1)
	leave, err := p.lockPartition(ctx, at)
	if err != nil {
		return err
	}
	defer leave()
	one.Known = false
	if err := p.sink.cluster.ReadSpans(ctx, []*cluster.Span{one}); err != nil { // what has come since: nobody writes to the partition now
		return err
	}
	return p.writeTombstones(ctx, at, count, ghosts)
}

// writeTombstones writes tombstones.
func (p *repairPass) writeTombstones(ctx context.Context, at cluster.Partition, count int, ghosts map[string]staleKey) error {
	l, err := p.sink.laneForPartition(at, count)
	if err != nil {
		return err
	}
	dead := make([]sinks.Message, 0, len(ghosts))
	for _, key := range slices.Sorted(maps.Keys(ghosts)) {
		dead = append(dead, sinks.Message{Change: p.newTombstone(key, ghosts[key])})
	}
	buried, err := l.writeTombstones(ctx, dead)
	p.tombstones += buried
	return err
}

// staleKey is an object that a topic still has.
type staleKey struct{ uid, version string }

// updateStaleKeys takes up the newest record of a key. It is a ghost when it is ours, of an object that the snapshot speaks of, and
// neither of this snapshot, nor observed after its beginning, nor in a version that its list did not know. That is the rule
// of docs/consuming.md, and a little more careful.
func (p *repairPass) updateStaleKeys(ghosts map[string]staleKey, key string, r *kproto.Record) {
	delete(ghosts, key)
	c := p.snapshot
	if r.Value == nil || protocol.HeaderValue(r, "cluster") != c.Cluster || protocol.HeaderValue(r, "resource") != c.Resource.String() || !p.coversKey(key) {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, protocol.HeaderValue(r, "observedAt"))
	if err != nil || protocol.HeaderValue(r, "snapshot") == c.Snapshot.ID || !at.Before(p.startedAt) {
		return
	}
	id, ours := strings.CutPrefix(protocol.HeaderValue(r, "id"), c.Cluster+"/")
	parts := strings.Split(id, "/") // uid, resourceVersion, type
	if !ours || len(parts) < 3 {
		return
	}
	version, err := strconv.ParseUint(parts[1], 10, 64) // they are ordered integers (KEP-5504)
	position, perr := strconv.ParseUint(c.Snapshot.Position, 10, 64)
	if err != nil || perr != nil || version > position {
		return
	}
	ghosts[key] = staleKey{parts[0], parts[1]}
}

// coversKey says whether the snapshot covers the object of a key.
func (p *repairPass) coversKey(key string) bool {
	all := p.snapshot.Key() // of a control record: group/resource/namespace/, or group/resource// for all namespaces
	if p.snapshot.Namespace == "" {
		all = strings.TrimSuffix(all, "/")
	}
	return strings.HasPrefix(key, all) && strings.Count(key, "/") == 3 && !strings.HasSuffix(key, "/")
}

// newTombstone is the delete that nobody saw.
func (p *repairPass) newTombstone(key string, g staleKey) *event.Change {
	c := &event.Change{
		Type: event.Deleted, Cluster: p.snapshot.Cluster, Resource: p.snapshot.Resource, UID: g.uid, ResourceVersion: g.version,
		ObservedAt: p.snapshot.ObservedAt, Coalesced: true, FinalStateUnknown: true, Snapshot: &event.SnapshotInfo{ID: p.snapshot.Snapshot.ID},
		Pass: p.snapshot.Snapshot.ID, // by which the object was found to be gone
	}
	place := strings.Split(key, "/") // group, resource, namespace, name
	c.Namespace, c.Name = place[len(place)-2], place[len(place)-1]
	return c
}
