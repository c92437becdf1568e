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
	// A writer that has not kept its transactional ID from expiring for keepAtMost, by the wall clock, publishes nothing
	// until it does: its successor may be given another producer ID, and that turns nobody away.
	keepAtMost = 72 * time.Hour
	keepAgain  = time.Hour // after a failure
	// expiredPause is how long a process that was given another producer ID than those before waits before it publishes:
	// they have not run for days, or have noticed by then.
	expiredPause = time.Minute
)

// fence is the right to publish of a sink that was fenced. All lanes write under its producer ID, each with numbers of its
// own. It is safe for concurrent use.
type fence struct {
	sink  *Sink
	claim sinks.Claim

	using chan struct{} // holds one token; who has it may use id
	id    *cluster.Transactional

	fencing *cluster.Rounds[cluster.Partition, cluster.Numbers] // turn what this process itself has on its way away
	noting  *cluster.Rounds[laneAt, struct{}]                   // make lanes known

	mu      sync.Mutex
	own     cluster.Numbers // the newest; lanes that were never in doubt go on under older ones
	lanes   map[sinks.Lane]cluster.Partition
	parts   map[cluster.Partition]*written
	gone    map[cluster.Partition]bool // that did not exist at the fence, and that this process has not begun to write
	deposed error
	kept    time.Time // without its monotonic part, which stands still while a machine sleeps
}

// written is how far this process has written a partition. It belongs to the lane that publishes there, and outlives it: a
// broker would take numbers that are used twice for a repetition, and drop what they are on.
type written struct {
	next   record.ProducerSequence // of what comes next; producer is noID until there is something
	doubt  bool                    // what was sent may or may not be there
	behind atomic.Int64            // all that is acknowledged lies before this offset, and all that is not lies there or beyond
}

// producerLane is a lane that is noted with the others, in order to remember the producer ID.
const producerLane = "/producer/"

// Fence is [sinks.Fenced.Fence]: it takes the transactional ID of the group and this sink over, and has the older epochs
// refused in all partitions that these lanes lead to.
func (s *Sink) Fence(ctx context.Context, claim sinks.Claim, lanes []sinks.Lane) error {
	if !s.config.idempotent() {
		return errors.New("only numbered records can be fenced: set kafka.idempotence to true")
	}
	f := newFence(s, claim)
	var before []string
	for _, lane := range lanes {
		if id, ok := strings.CutPrefix(string(lane), producerLane); ok {
			before = append(before, id)
		} else if p, ok := partitionOfLane(lane); ok {
			f.lanes[lane] = p
		}
	}
	own, gone, err := f.id.Fence(ctx, cluster.Nobody, f.partitions())
	if err != nil {
		return err
	}
	if err := f.recognize(own, before); err != nil {
		return err
	}
	f.own, f.kept = own, time.Now().Round(0)
	for _, p := range gone {
		f.gone[p] = true
	}
	s.Resume(f.widest())
	if len(before) > 0 && slices.Contains(before, strconv.FormatInt(own.Producer, 10)) {
		f.lanes[f.producerLane()] = cluster.Partition{}
	}
	s.fence.Store(f)
	s.background.Go(f.keep)
	return nil
}

func newFence(s *Sink, claim sinks.Claim) *fence {
	f := &fence{
		sink: s, claim: claim, using: make(chan struct{}, 1),
		id:    s.cluster.Transactional(cluster.TransactionalID(claim.Group, claim.Sink)),
		lanes: map[sinks.Lane]cluster.Partition{}, parts: map[cluster.Partition]*written{}, gone: map[cluster.Partition]bool{},
	}
	f.using <- struct{}{}
	f.fencing = cluster.NewRounds(s.background.Go, f.fenceAgain)
	f.noting = cluster.NewRounds(s.background.Go, f.note)
	return f
}

// partitions returns those of all lanes.
func (f *fence) partitions() []cluster.Partition {
	all := map[cluster.Partition]bool{}
	for _, p := range f.lanes {
		all[p] = true
	}
	return slices.Collect(maps.Keys(all))
}

// widest returns a lane of each topic that is there and has no route, of those that were named when it had most partitions.
// So it has one before anybody asks about it.
func (f *fence) widest() []sinks.Lane {
	most, of := map[string]int{}, map[string]sinks.Lane{}
	for lane := range f.lanes {
		topic, _, count, err := parseLane(lane)
		if err == nil && count > most[topic] && f.hasTail(f.lanes[lane]) && f.sink.routes[topic] == nil {
			most[topic], of[topic] = count, lane
		}
	}
	return slices.Collect(maps.Values(of))
}

// recognize compares the producer ID with those of the processes before. It returns an error until it may be used.
func (f *fence) recognize(own cluster.Numbers, before []string) error {
	if len(before) == 0 || slices.Contains(before, strconv.FormatInt(own.Producer, 10)) {
		return nil
	}
	s := f.sink
	if s.expired.IsZero() {
		s.expired = time.Now()
	}
	left := expiredPause - time.Since(s.expired)
	if left <= 0 {
		return nil
	}
	return &sinks.UnavailableError{After: left, Reason: fmt.Sprintf(
		"the transactional ID %q had expired and has another producer ID now, so an older exporter that still runs cannot be turned away: "+
			"make sure that no other exporter of the group runs; this one waits a minute", f.id.ID)}
}

func (f *fence) producerLane() sinks.Lane {
	return sinks.Lane(producerLane + strconv.FormatInt(f.own.Producer, 10))
}

// Places is [sinks.Fenced.Places]. Lanes that lead to one partition, as before and after a topic grew, share its place.
func (s *Sink) Places() map[sinks.Lane]sinks.Place {
	f := s.fence.Load()
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	places := make(map[sinks.Lane]sinks.Place, len(f.parts))
	for lane, p := range f.lanes {
		if w := f.parts[p]; w != nil {
			places[lane] = sinks.Place(w.behind.Load())
		}
	}
	return places
}

// check returns an error when this process may not publish.
func (f *fence) check(ctx context.Context) error {
	f.mu.Lock()
	deposed, silent := f.deposed, time.Now().Round(0).Sub(f.kept) > keepAtMost
	f.mu.Unlock()
	if deposed != nil || !silent {
		return deposed
	}
	return f.keepNow(ctx)
}

// depose notes that another process has taken over, and returns the error that says so.
func (f *fence) depose(err error) error {
	var deposed *sinks.DeposedError
	if !errors.As(err, &deposed) {
		deposed = &sinks.DeposedError{Reason: fmt.Sprintf("another process has claimed the transactional ID %q", f.id.ID), Err: err}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deposed == nil {
		f.deposed = deposed
	}
	return f.deposed
}

// noteError notes what an error may say of who publishes.
func (f *fence) noteError(err error) error {
	var deposed *sinks.DeposedError
	if errors.As(err, &deposed) {
		return f.depose(err)
	}
	return err
}

// keep keeps the transactional ID from expiring, until the sink is closed or deposed.
func (f *fence) keep() {
	for wait := cluster.KeepEvery; ; {
		if ratelimit.Sleep(f.sink.open, wait) != nil {
			return
		}
		wait = cluster.KeepEvery
		err := f.keepNow(f.sink.open)
		var deposed *sinks.DeposedError
		if errors.As(err, &deposed) {
			return
		}
		if err != nil {
			wait = keepAgain
			f.sink.log.Warn("the transactional ID could not be kept from expiring", "transactionalID", f.id.ID, "error", err)
		}
	}
}

// keepNow asks for another epoch. Lanes go on under theirs.
func (f *fence) keepNow(ctx context.Context) error {
	return f.use(ctx, func(own cluster.Numbers) (cluster.Numbers, error) { return f.id.Init(ctx, own) })
}

// use does something that yields a newer epoch.
func (f *fence) use(ctx context.Context, what func(own cluster.Numbers) (cluster.Numbers, error)) error {
	select {
	case <-f.using:
		defer func() { f.using <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	own := f.own
	f.mu.Unlock()
	newer, err := what(own)
	if err != nil && newer == own {
		return f.noteError(err)
	}
	if err := f.id.Kept(own, newer); err != nil {
		return f.depose(err)
	}
	f.mu.Lock()
	f.own, f.kept = newer, time.Now().Round(0)
	f.mu.Unlock()
	return f.noteError(err)
}

// fenceAgain makes brokers refuse what is on its way to some partitions, and returns the numbers to go on with.
func (f *fence) fenceAgain(partitions []cluster.Partition) (own cluster.Numbers, err error) {
	err = f.use(f.sink.open, func(before cluster.Numbers) (cluster.Numbers, error) {
		var err error
		own, _, err = f.id.Fence(f.sink.open, before, partitions)
		return own, err
	})
	return own, err
}

// laneAt is a lane, and where it begins for this process.
type laneAt struct {
	lane  sinks.Lane
	place sinks.Place
}

// makeKnown notes a lane, and the producer ID, unless they are known.
func (f *fence) makeKnown(ctx context.Context, one laneAt) error {
	f.mu.Lock()
	_, known := f.lanes[one.lane]
	_, noted := f.lanes[f.producerLane()]
	f.mu.Unlock()
	if known && noted {
		return nil
	}
	_, err := f.noting.Ask(ctx, one)
	return err
}

// note is makeKnown for many lanes.
func (f *fence) note(all []laneAt) (_ struct{}, err error) {
	lanes := map[sinks.Lane]sinks.Place{}
	f.mu.Lock()
	for _, one := range append(all, laneAt{lane: f.producerLane()}) {
		if _, known := f.lanes[one.lane]; !known {
			lanes[one.lane] = one.place
		}
	}
	f.mu.Unlock()
	if err := f.claim.Note(f.sink.open, lanes); err != nil {
		return struct{}{}, f.noteError(fmt.Errorf("a lane cannot be noted in the replicated state: %w", err))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for lane := range lanes {
		f.lanes[lane], _ = partitionOfLane(lane)
	}
	return struct{}{}, nil
}

// part returns how far a partition is written; nil if this process has not begun to.
func (f *fence) part(p cluster.Partition) *written {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.parts[p]
}

// begin returns how far a partition is written: not at all, or nothing behind an offset.
func (f *fence) begin(p cluster.Partition, end int64) *written {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &written{next: record.ProducerSequence{Producer: f.own.Producer, Epoch: f.own.Epoch}}
	w.behind.Store(end)
	f.parts[p] = w
	delete(f.gone, p)
	return w
}

// hasTail says whether a partition may hold anything.
func (f *fence) hasTail(p cluster.Partition) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.gone[p]
}
