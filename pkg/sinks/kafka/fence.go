package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// A writer that has not kept its transactional ID from expiring for maxRenewalAge, by the wall clock, publishes nothing
	// until it does: its successor may be given another producer ID, and that turns nobody away.
	maxRenewalAge   = 72 * time.Hour
	renewRetryDelay = time.Hour // after a failure
	// changedProducerDelay is how long a process that was given another producer ID than those before waits before it publishes:
	// they have not run for days, or have noticed by then.
	changedProducerDelay = time.Minute
)

// fence is the right to publish of a sink that was fenced. All lanes write under its producer ID, each with numbers of its
// own. It is safe for concurrent use.
type fence struct {
	sink  *Sink
	claim sinks.Claim

	idToken       chan struct{} // holds one token; who has it may use id
	transactional *cluster.Transactional

	fenceRounds *cluster.Coalescer[cluster.Partition, cluster.ProducerEpoch] // turn what this process itself has on its way away
	noteRounds  *cluster.Coalescer[laneStart, struct{}]                      // make lanes known

	mu        sync.Mutex
	current   cluster.ProducerEpoch // the newest; lanes that were never in doubt go on under older ones
	lanes     map[sinks.Lane]cluster.Partition
	progress  map[cluster.Partition]*partitionProgress
	missing   map[cluster.Partition]bool // that did not exist at the fence, and that this process has not begun to write
	deposed   error
	renewedAt time.Time // without its monotonic part, which stands still while a machine sleeps
}

// partitionProgress is how far this process has written a partition. It belongs to the lane that publishes there, and outlives it: a
// broker would take numbers that are used twice for a repetition, and drop what they are on.
type partitionProgress struct {
	next          record.ProducerSequence // of what comes next; producer is noID until there is something
	inDoubt       bool                    // what was sent may or may not be there
	deliveredUpTo atomic.Int64            // all that is acknowledged lies before this offset, and all that is not lies there or beyond
}

// producerLanePrefix is a lane that is noted with the others, in order to remember the producer ID.
const producerLanePrefix = "/producer/"

// Fence is [sinks.Fenced.Fence]: it takes the transactional ID of the group and this sink over, and has the older epochs
// refused in all partitions that these lanes lead to.
func (s *Sink) Fence(ctx context.Context, claim sinks.Claim, lanes []sinks.Lane) error {
	if !s.config.isIdempotent() {
		return errors.New("only numbered records can be fenced: set kafka.idempotence to true")
	}
	f := newFence(s, claim)
	var before []string
	for _, lane := range lanes {
		if id, ok := strings.CutPrefix(string(lane), producerLanePrefix); ok {
			before = append(before, id)
		} else if p, ok := partitionOfLane(lane); ok {
			f.lanes[lane] = p
		}
	}
	own, gone, err := f.transactional.FencePartitions(ctx, cluster.NoProducer, f.allPartitions())
	if err != nil {
		return err
	}
	if err := f.checkProducerID(own, before); err != nil {
		return err
	}
	f.current, f.renewedAt = own, time.Now().Round(0)
	for _, p := range gone {
		f.missing[p] = true
	}
	s.ResumeLanes(f.widestLanes())
	if len(before) > 0 && slices.Contains(before, strconv.FormatInt(own.Producer, 10)) {
		f.lanes[f.producerLane()] = cluster.Partition{}
	}
	s.fence.Store(f)
	s.background.Go(f.runRenewals)
	return nil
}

func newFence(s *Sink, claim sinks.Claim) *fence {
	f := &fence{
		sink: s, claim: claim, idToken: make(chan struct{}, 1),
		transactional: s.cluster.Transactional(cluster.TransactionalID(claim.Group, claim.Sink)),
		lanes:         map[sinks.Lane]cluster.Partition{}, progress: map[cluster.Partition]*partitionProgress{}, missing: map[cluster.Partition]bool{},
	}
	f.idToken <- struct{}{}
	f.fenceRounds = cluster.NewCoalescer(s.background.Go, f.fencePartitions)
	f.noteRounds = cluster.NewCoalescer(s.background.Go, f.noteLanes)
	return f
}

// allPartitions returns those of all lanes.
func (f *fence) allPartitions() []cluster.Partition {
	all := map[cluster.Partition]bool{}
	for _, p := range f.lanes {
		all[p] = true
	}
	return slices.Collect(maps.Keys(all))
}

// widestLanes returns a lane of each topic that is there and has no route, of those that were named when it had most partitions.
// So it has one before anybody asks about it.
func (f *fence) widestLanes() []sinks.Lane {
	most, of := map[string]int{}, map[string]sinks.Lane{}
	for lane := range f.lanes {
		topic, _, count, err := parseLane(lane)
		if err == nil && count > most[topic] && f.mayHoldRecords(f.lanes[lane]) && f.sink.routes[topic] == nil {
			most[topic], of[topic] = count, lane
		}
	}
	return slices.Collect(maps.Values(of))
}

// checkProducerID compares the producer ID with those of the processes before. It returns an error until it may be used.
func (f *fence) checkProducerID(own cluster.ProducerEpoch, before []string) error {
	if len(before) == 0 || slices.Contains(before, strconv.FormatInt(own.Producer, 10)) {
		return nil
	}
	s := f.sink
	if s.producerChangedAt.IsZero() {
		s.producerChangedAt = time.Now()
	}
	left := changedProducerDelay - time.Since(s.producerChangedAt)
	if left <= 0 {
		return nil
	}
	return &sinks.UnavailableError{After: left, Reason: fmt.Sprintf(
		"the transactional ID %q had expired and has another producer ID now, so an older exporter that still runs cannot be turned away: "+
			"make sure that no other exporter of the group runs; this one waits a minute", f.transactional.ID)}
}

func (f *fence) producerLane() sinks.Lane {
	return sinks.Lane(producerLanePrefix + strconv.FormatInt(f.current.Producer, 10))
}

// LaneProgress is [sinks.Fenced.LaneProgress]. Lanes that lead to one partition, as before and after a topic grew, share its place.
func (s *Sink) LaneProgress() map[sinks.Lane]sinks.LanePosition {
	f := s.fence.Load()
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	places := make(map[sinks.Lane]sinks.LanePosition, len(f.progress))
	for lane, p := range f.lanes {
		if w := f.progress[p]; w != nil {
			places[lane] = sinks.LanePosition(w.deliveredUpTo.Load())
		}
	}
	return places
}

// ensureMayPublish returns an error when this process may not publish.
func (f *fence) ensureMayPublish(ctx context.Context) error {
	f.mu.Lock()
	deposed, silent := f.deposed, time.Now().Round(0).Sub(f.renewedAt) > maxRenewalAge
	f.mu.Unlock()
	if deposed != nil || !silent {
		return deposed
	}
	return f.renewEpoch(ctx)
}

// recordDeposed notes that another process has taken over, and returns the error that says so.
func (f *fence) recordDeposed(err error) error {
	var deposed *sinks.DeposedError
	if !errors.As(err, &deposed) {
		deposed = &sinks.DeposedError{Reason: fmt.Sprintf("another process has claimed the transactional ID %q", f.transactional.ID), Err: err}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deposed == nil {
		f.deposed = deposed
	}
	return f.deposed
}

// recordIfDeposed notes what an error may say of who publishes.
func (f *fence) recordIfDeposed(err error) error {
	var deposed *sinks.DeposedError
	if errors.As(err, &deposed) {
		return f.recordDeposed(err)
	}
	return err
}

// runRenewals keeps the transactional ID from expiring, until the sink is closed or deposed.
func (f *fence) runRenewals() {
	for wait := cluster.RenewInterval; ; {
		if ratelimit.Sleep(f.sink.runCtx, wait) != nil {
			return
		}
		wait = cluster.RenewInterval
		err := f.renewEpoch(f.sink.runCtx)
		var deposed *sinks.DeposedError
		if errors.As(err, &deposed) {
			return
		}
		if err != nil {
			wait = renewRetryDelay
			f.sink.log.Warn("the transactional ID could not be kept from expiring", "transactionalID", f.transactional.ID, "error", err)
		}
	}
}

// renewEpoch asks for another epoch. Lanes go on under theirs.
func (f *fence) renewEpoch(ctx context.Context) error {
	return f.advanceEpoch(ctx, func(own cluster.ProducerEpoch) (cluster.ProducerEpoch, error) {
		return f.transactional.InitProducerID(ctx, own)
	})
}

// advanceEpoch does something that yields a newer epoch.
func (f *fence) advanceEpoch(ctx context.Context, what func(own cluster.ProducerEpoch) (cluster.ProducerEpoch, error)) error {
	select {
	case <-f.idToken:
		defer func() { f.idToken <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	own := f.current
	f.mu.Unlock()
	newer, err := what(own)
	if err != nil && newer == own {
		return f.recordIfDeposed(err)
	}
	if err := f.transactional.CheckProducerID(own, newer); err != nil {
		return f.recordDeposed(err)
	}
	f.mu.Lock()
	f.current, f.renewedAt = newer, time.Now().Round(0)
	f.mu.Unlock()
	return f.recordIfDeposed(err)
}

// fencePartitions makes brokers refuse what is on its way to some partitions, and returns the numbers to go on with.
func (f *fence) fencePartitions(partitions []cluster.Partition) (own cluster.ProducerEpoch, err error) {
	err = f.advanceEpoch(f.sink.runCtx, func(before cluster.ProducerEpoch) (cluster.ProducerEpoch, error) {
		var err error
		own, _, err = f.transactional.FencePartitions(f.sink.runCtx, before, partitions)
		return own, err
	})
	return own, err
}

// laneStart is a lane, and where it begins for this process.
type laneStart struct {
	lane     sinks.Lane
	position sinks.LanePosition
}

// ensureNoted notes a lane, and the producer ID, unless they are known.
func (f *fence) ensureNoted(ctx context.Context, one laneStart) error {
	f.mu.Lock()
	_, known := f.lanes[one.lane]
	_, noted := f.lanes[f.producerLane()]
	f.mu.Unlock()
	if known && noted {
		return nil
	}
	_, err := f.noteRounds.Submit(ctx, one)
	return err
}

// noteLanes is ensureNoted for many lanes.
func (f *fence) noteLanes(all []laneStart) (_ struct{}, err error) {
	lanes := map[sinks.Lane]sinks.LanePosition{}
	f.mu.Lock()
	for _, one := range append(all, laneStart{lane: f.producerLane()}) {
		if _, known := f.lanes[one.lane]; !known {
			lanes[one.lane] = one.position
		}
	}
	f.mu.Unlock()
	if err := f.claim.RecordLanes(f.sink.runCtx, lanes); err != nil {
		return struct{}{}, f.recordIfDeposed(fmt.Errorf("a lane cannot be noted in the replicated state: %w", err))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for lane := range lanes {
		f.lanes[lane], _ = partitionOfLane(lane)
	}
	return struct{}{}, nil
}

// progressOf returns how far a partition is written; nil if this process has not begun to.
func (f *fence) progressOf(p cluster.Partition) *partitionProgress {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress[p]
}

// startPartition returns how far a partition is written: not at all, or nothing behind an offset.
func (f *fence) startPartition(p cluster.Partition, end int64) *partitionProgress {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &partitionProgress{next: record.ProducerSequence{Producer: f.current.Producer, Epoch: f.current.Epoch}}
	w.deliveredUpTo.Store(end)
	f.progress[p] = w
	delete(f.missing, p)
	return w
}

// mayHoldRecords says whether a partition may hold anything.
func (f *fence) mayHoldRecords(p cluster.Partition) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.missing[p]
}
