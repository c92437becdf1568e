package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
)

const (
	// repairRetryDelay is the time between two attempts of a repair.
	repairRetryDelay = 5 * time.Second
	// maxConcurrentRepairs is how many topics are read at the same time.
	maxConcurrentRepairs = 2
)

// partitionLocks give lanes and repairs exclusive access to partitions. It is safe for concurrent use.
type partitionLocks struct {
	mu    sync.Mutex
	locks map[cluster.Partition]chan struct{} // hold a token while locked
}

func newPartitionLocks() *partitionLocks {
	return &partitionLocks{locks: map[cluster.Partition]chan struct{}{}}
}

// lockPartition waits for exclusive access to a partition. Without repair, l is nil and nothing is locked.
func (l *partitionLocks) lockPartition(ctx context.Context, p cluster.Partition) (unlock func(), err error) {
	if l == nil {
		return func() {}, nil
	}
	l.mu.Lock()
	one := l.locks[p]
	if one == nil {
		one = make(chan struct{}, 1)
		l.locks[p] = one
	}
	l.mu.Unlock()
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// repair is the work that is due for a snapshot: once everything up to its end is accepted, keys that it lacks get
// tombstones.
type repair struct {
	topic     string
	snapshot  *event.Change // its end or, before that is accepted, its beginning
	startedAt time.Time     // when the snapshot began, by the exporter's clock
	ended     bool
	endOffset uint64 // offset of the end of the snapshot in the journal
	running   bool
	lastError string // why it does not succeed; "" while it does
}

// snapshotScope identifies the objects that a snapshot covers, in a topic.
func snapshotScope(topic string, c *event.Change) string {
	return topic + " " + c.Key()
}

// repairer repairs topics at the end of snapshots. Pending repairs outlive the process with the state of the sink. A nil
// repairer does nothing. It is safe for concurrent use.
type repairer struct {
	topics     *topicCatalog
	lanes      *laneSet
	reader     *cluster.Reader
	locks      *partitionLocks
	saveState  func(context.Context) error
	runCtx     context.Context // of the sink
	background func(func())    // starts a goroutine of the sink
	log        *slog.Logger

	retryDelay time.Duration
	maxKeys    int           // stale keys to hold at once; tests lower it
	readSlots  chan struct{} // holds a token for each topic that is being read

	mu           sync.Mutex
	pending      map[string]*repair // by snapshotScope
	activeWrites map[string]int     // by topic: partitions to which tombstones are being written
}

func newRepairer(runCtx context.Context, background func(func()), lanes *laneSet, saveState func(context.Context) error, log *slog.Logger) *repairer {
	return &repairer{
		topics: lanes.topics, lanes: lanes, reader: lanes.reader, locks: lanes.locks, saveState: saveState,
		runCtx: runCtx, background: background, log: log,
		retryDelay: repairRetryDelay, maxKeys: maxStaleKeys, readSlots: make(chan struct{}, maxConcurrentRepairs),
		pending: map[string]*repair{}, activeWrites: map[string]int{},
	}
}

// isWritingTo reports whether tombstones are being written to a topic. Its lanes are not replaced meanwhile.
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

// recordAccepted records the snapshots that begin and end among the accepted messages of a topic.
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
		default: // only the borders of snapshots start a repair
		}
	}
}

// restorePending continues the repairs of the previous process. It saves the state, so that startDue is called soon for
// those that are due.
func (r *repairer) restorePending(repairs []*repair) {
	if r == nil || len(repairs) == 0 {
		return
	}
	r.mu.Lock()
	for _, one := range repairs {
		r.pending[snapshotScope(one.topic, one.snapshot)] = one
	}
	r.mu.Unlock()
	r.background(func() { _ = r.saveState(r.runCtx) })
}

// startSnapshot replaces a pending repair of the same objects: this snapshot lacks all that the earlier one lacked.
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
		r.log.Warn("a topic is not repaired: the snapshot began in another process, or before a configuration change; keys that the snapshot lacks remain",
			"topic", topic, "resource", m.Change.Resource.String(), "namespace", m.Change.Namespace)
		return
	}
	if !one.running {
		one.snapshot, one.ended, one.endOffset = m.Change.Clone(), true, m.Offset
	}
}

// startDue starts the repairs of all snapshots that end at or before low, up to which every message is accepted.
func (r *repairer) startDue(low uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for scope, one := range r.pending {
		if one.ended && one.endOffset <= low && !one.running {
			one.running = true
			r.background(func() { r.runRepair(r.runCtx, scope, one) })
		}
	}
}

// runRepair repairs a topic, and tries again until that succeeds or another snapshot of the same objects begins.
func (r *repairer) runRepair(ctx context.Context, scope string, one *repair) {
	p := newRepairPass(r, one)
	for current := true; current; current = r.isCurrent(scope, one) {
		select {
		case r.readSlots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := p.repairTopic(ctx)
		if err == nil {
			r.finishRepair(ctx, scope, p)
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

// isCurrent reports whether no other snapshot of the same objects has begun.
func (r *repairer) isCurrent(scope string, one *repair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[scope] == one
}

// finishRepair removes a repair that has succeeded, here and from the stored state.
func (r *repairer) finishRepair(ctx context.Context, scope string, p *repairPass) {
	r.mu.Lock()
	if r.pending[scope] == p.repair {
		delete(r.pending, scope)
	}
	r.mu.Unlock()
	_ = r.saveState(ctx) // after a failure the next process repairs again, and finds nothing to do
	snapshot := p.repair.snapshot
	r.log.Info("a topic is repaired: keys that the snapshot lacks have tombstones", "topic", p.repair.topic,
		"resource", snapshot.Resource.String(), "namespace", snapshot.Namespace, "keys", p.tombstones)
}

// logFailure logs why a repair fails, when the reason changes.
func (r *repairer) logFailure(one *repair, err error) {
	reason := fmt.Sprintf("topic %q is not repaired yet, keys of deleted objects remain: %v", one.topic, err)
	r.mu.Lock()
	changed := reason != one.lastError
	one.lastError = reason
	r.mu.Unlock()
	if changed {
		r.log.Warn("a topic is not repaired yet: keys of deleted objects remain", "topic", one.topic, "error", err)
	}
}

// warnings returns why repairs fail, without duplicates.
func (r *repairer) warnings() (all []string) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, scope := range slices.Sorted(maps.Keys(r.pending)) {
		if reason := r.pending[scope].lastError; reason != "" && !slices.Contains(all, reason) {
			all = append(all, reason)
		}
	}
	return all
}
