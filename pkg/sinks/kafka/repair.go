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
	// repairAgain is how long a repair that did not succeed waits for the next attempt.
	repairAgain = 5 * time.Second
	// repairsAtOnce is how many topics are read back at the same time.
	repairsAtOnce = 2
	// maxGhosts bounds the keys that are remembered while a partition is read back: it is read several times where it has
	// more. // I6
	maxGhosts = 100_000
)

// repair is what is due for a snapshot: when everything up to its end is accepted, keys that it lacks get their tombstones.
type repair struct {
	topic    string
	snapshot *event.Change // its end or, before that is accepted, its beginning
	began    time.Time     // when the snapshot began, by the exporter's clock
	ended    bool
	upTo     uint64 // offset of its end
	running  bool
	why      string // it does not succeed; "" while it does
}

// scope is what a snapshot speaks of, in a topic.
func scope(topic string, c *event.Change) string { return topic + " " + c.Cluster + " " + c.Key() }

// repairs are the snapshots of topics that repair themselves. They outlive the process with the state of the sink. nil: none
// does. It is safe for concurrent use.
type repairs struct {
	sink  *Sink
	again time.Duration
	most  int           // keys to remember
	slots chan struct{} // has room for those that read

	mu      sync.Mutex
	pending map[string]*repair                  // by scope
	turns   map[cluster.Partition]chan struct{} // hold a token while somebody writes there: a lane or a repair
	writing map[string]int                      // by topic: partitions to which tombstones are being written
}

func newRepairs(s *Sink) *repairs {
	return &repairs{
		sink: s, again: repairAgain, most: maxGhosts, slots: make(chan struct{}, repairsAtOnce),
		pending: map[string]*repair{}, turns: map[cluster.Partition]chan struct{}{}, writing: map[string]int{},
	}
}

// take waits until nobody else writes to a partition, and returns what ends that.
func (r *repairs) take(ctx context.Context, p cluster.Partition) (leave func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	r.mu.Lock()
	one := r.turns[p]
	if one == nil {
		one = make(chan struct{}, 1)
		r.turns[p] = one
	}
	r.mu.Unlock()
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// busy says whether tombstones are being written to a topic.
func (r *repairs) busy(topic string) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writing[topic] > 0
}

func (r *repairs) write(topic string, more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing[topic] += more
}

// accepted notes which snapshots begin and end among messages that a topic has taken.
func (r *repairs) accepted(topic string, messages []sinks.Message) {
	if r == nil {
		return
	}
	for _, m := range messages {
		switch m.Change.Type {
		case event.SnapshotBegin:
			r.begin(topic, m.Change)
		case event.SnapshotEnd:
			r.end(topic, m)
		}
	}
}

// restore takes up what the process before has left. What is due already begins with the next state that is stored, of which
// there is one soon.
func (r *repairs) restore(left []*repair) {
	if r == nil || len(left) == 0 {
		return
	}
	r.mu.Lock()
	for _, one := range left {
		r.pending[scope(one.topic, one.snapshot)] = one
	}
	r.mu.Unlock()
	r.sink.background.Go(func() { _ = r.sink.producers.store(r.sink.open) })
}

// begin notes that a snapshot has begun. What an earlier one of the same objects lacked, this one lacks too.
func (r *repairs) begin(topic string, c *event.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[scope(topic, c)] = &repair{topic: topic, snapshot: c.Clone(), began: c.ObservedAt}
}

func (r *repairs) end(topic string, m sinks.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.pending[scope(topic, m.Change)]
	if one == nil {
		r.sink.log.Warn("a topic is not repaired: the snapshot began in another process, or before the configuration was changed; keys that the snapshot lacks stay",
			"topic", topic, "resource", m.Change.Resource.String(), "namespace", m.Change.Namespace)
		return
	}
	if !one.running {
		one.snapshot, one.ended, one.upTo = m.Change.Clone(), true, m.Offset
	}
}

// settled begins what is due now that every message up to low is accepted, and none of the process before is published any
// more.
func (r *repairs) settled(low uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, one := range r.pending {
		if one.ended && one.upTo <= low && !one.running {
			one.running = true
			r.sink.background.Go(func() { r.run(r.sink.open, name, one) })
		}
	}
}

// run repairs a topic, and tries again until that has succeeded or another snapshot has begun.
func (r *repairs) run(ctx context.Context, name string, one *repair) {
	p := &pass{repairs: r, repair: one, seed: maphash.MakeSeed(), done: map[int32]bool{}}
	for current := true; current; current = r.is(name, one) {
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := p.topic(ctx)
		if err == nil {
			r.finish(ctx, name, p)
		}
		<-r.slots
		if err == nil || ctx.Err() != nil {
			return
		}
		r.tell(one, err)
		select {
		case <-time.After(r.again):
		case <-ctx.Done():
			return
		}
	}
}

// is says whether no other snapshot of the same objects has begun.
func (r *repairs) is(name string, one *repair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[name] == one
}

// finish forgets a repair that has succeeded, here and for the next process.
func (r *repairs) finish(ctx context.Context, name string, p *pass) {
	r.mu.Lock()
	if r.pending[name] == p.repair {
		delete(r.pending, name)
	}
	r.mu.Unlock()
	_ = r.sink.producers.store(ctx) // else the next process looks again, and finds nothing
	r.sink.log.Info("a topic is repaired: keys that the snapshot lacks have their tombstones", "topic", p.repair.topic,
		"resource", p.snapshot.Resource.String(), "namespace", p.snapshot.Namespace, "keys", p.keys)
}

// tell says why a repair does not succeed, when that changes.
func (r *repairs) tell(one *repair, err error) {
	why := fmt.Sprintf("topic %q is not repaired yet, keys of deleted objects stay: %v", one.topic, err)
	r.mu.Lock()
	news := why != one.why
	one.why = why
	r.mu.Unlock()
	if news {
		r.sink.log.Warn("a topic is not repaired yet: keys of deleted objects stay", "topic", one.topic, "error", err)
	}
}

// Cautions is [sinks.Cautious.Cautions].
func (s *Sink) Cautions() (all []string) {
	if s.repairs == nil {
		return nil
	}
	s.repairs.mu.Lock()
	defer s.repairs.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.repairs.pending)) {
		if why := s.repairs.pending[name].why; why != "" && !slices.Contains(all, why) {
			all = append(all, why)
		}
	}
	return all
}

// pass is a way through the partitions of a topic.
type pass struct {
	*repairs
	*repair
	seed maphash.Seed
	done map[int32]bool // by partition
	keys int            // that were given tombstones
}

// topic repairs the partitions that are not repaired yet, as far as they can be.
func (p *pass) topic(ctx context.Context) (first error) {
	t := p.sink.topic(p.repair.topic)
	layout, err := p.sink.refresh(ctx, t, nil)
	if err != nil {
		return err
	}
	for i := range layout.Leads {
		n := int32(i)
		if p.done[n] {
			continue
		}
		if err := p.partition(ctx, cluster.Partition{Topic: t.name, Index: n}, len(layout.Leads)); err == nil {
			p.done[n] = true
		} else if first == nil {
			first = err
		}
	}
	return first
}

// partition gives tombstones to the keys of one partition of so many. It is read in several parts where it has very many
// ghosts.
func (p *pass) partition(ctx context.Context, at cluster.Partition, count int) error {
	const all = 64 // bits of a hash
	for part, bits := uint64(0), 0; part < 1<<bits; {
		err := p.part(ctx, at, count, func(key []byte) bool { return maphash.Bytes(p.seed, key)>>(all-bits) == part })
		if errors.Is(err, errManyGhosts) {
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

var errManyGhosts = errors.New("more keys than can be remembered at once")

// part is partition for some keys.
func (p *pass) part(ctx context.Context, at cluster.Partition, count int, has func(key []byte) bool) error {
	ghosts := map[string]ghost{}
	one := &cluster.Span{Partition: at, Each: func(r *kproto.Record) error {
		key, err := protocol.Bytes(r.Key)
		if err != nil || !has(key) {
			return err
		}
		if p.consider(ghosts, string(key), r); len(ghosts) > p.most {
			return errManyGhosts
		}
		return nil
	}}
	if err := p.sink.cluster.Read(ctx, []*cluster.Span{one}); err != nil || len(ghosts) == 0 {
		return err
	}
	p.write(at.Topic, 1)
	defer p.write(at.Topic, -1)
	leave, err := p.take(ctx, at)
	if err != nil {
		return err
	}
	defer leave()
	one.Known = false
	if err := p.sink.cluster.Read(ctx, []*cluster.Span{one}); err != nil { // what has come since: nobody writes to the partition now
		return err
	}
	return p.bury(ctx, at, count, ghosts)
}

// bury writes tombstones.
func (p *pass) bury(ctx context.Context, at cluster.Partition, count int, ghosts map[string]ghost) error {
	l, err := p.sink.laneTo(at, count)
	if err != nil {
		return err
	}
	dead := make([]sinks.Message, 0, len(ghosts))
	for _, key := range slices.Sorted(maps.Keys(ghosts)) {
		dead = append(dead, sinks.Message{Change: p.tombstone(key, ghosts[key])})
	}
	buried, err := l.bury(ctx, dead)
	p.keys += buried
	return err
}

// ghost is an object that a topic still has.
type ghost struct{ uid, version string }

// consider takes up the newest record of a key. It is a ghost when it is ours, of an object that the snapshot speaks of, and
// neither of this snapshot, nor observed after its beginning, nor in a version that its list did not know. That is the rule
// of docs/consuming.md, and a little more careful.
func (p *pass) consider(ghosts map[string]ghost, key string, r *kproto.Record) {
	delete(ghosts, key)
	c := p.snapshot
	if r.Value == nil || protocol.Header(r, "cluster") != c.Cluster || protocol.Header(r, "resource") != c.Resource.String() || !p.speaksOf(key) {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, protocol.Header(r, "observedAt"))
	if err != nil || protocol.Header(r, "snapshot") == c.Snapshot.ID || !at.Before(p.began) {
		return
	}
	id, ours := strings.CutPrefix(protocol.Header(r, "id"), c.Cluster+"/")
	parts := strings.Split(id, "/") // uid, resourceVersion, type
	if !ours || len(parts) < 3 {
		return
	}
	version, err := strconv.ParseUint(parts[1], 10, 64) // they are ordered integers (KEP-5504)
	position, perr := strconv.ParseUint(c.Snapshot.Position, 10, 64)
	if err != nil || perr != nil || version > position {
		return
	}
	ghosts[key] = ghost{parts[0], parts[1]}
}

// speaksOf says whether the snapshot covers the object of a key.
func (p *pass) speaksOf(key string) bool {
	all := p.snapshot.Key() // of a control record: group/resource/namespace/, or group/resource// for all namespaces
	if p.snapshot.Namespace == "" {
		all = strings.TrimSuffix(all, "/")
	}
	return strings.HasPrefix(key, all) && strings.Count(key, "/") == 3 && !strings.HasSuffix(key, "/")
}

// tombstone is the delete that nobody saw.
func (p *pass) tombstone(key string, g ghost) *event.Change {
	c := &event.Change{
		Type: event.Deleted, Cluster: p.snapshot.Cluster, Resource: p.snapshot.Resource, UID: g.uid, ResourceVersion: g.version,
		ObservedAt: p.snapshot.ObservedAt, Coalesced: true, FinalStateUnknown: true, Snapshot: &event.SnapshotInfo{ID: p.snapshot.Snapshot.ID},
		Pass: p.snapshot.Snapshot.ID, // by which the object was found to be gone
	}
	place := strings.Split(key, "/") // group, resource, namespace, name
	c.Namespace, c.Name = place[len(place)-2], place[len(place)-1]
	return c
}
