package kafka

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// maxRenewalAge is how long ago, by the wall clock, the transactional ID may have been renewed for lanes to publish. An
	// older one may have expired, and a successor would get another producer ID, which does not fence this process.
	maxRenewalAge   = 72 * time.Hour
	renewRetryDelay = time.Hour
	// changedProducerDelay is how long a process with another producer ID than its predecessors waits before it publishes:
	// these have not run for days, or notice within that time that they have not renewed theirs.
	changedProducerDelay = time.Minute
	// leaderTimeout bounds how long the lanes of other brokers wait at a failover for the answer of one broker, and
	// laterLeaderTimeout at a restart and afterwards. The lanes of one that needs longer wait by themselves.
	leaderTimeout, laterLeaderTimeout = time.Second, 2 * time.Second
	// shapeTimeout bounds the question to all brokers whether topics and partitions exist.
	shapeTimeout = time.Second
	// maxUnknownTries is how often brokers are asked about a partition that some do not know, unknownRetryDelay apart.
	maxUnknownTries   = 3
	unknownRetryDelay = 200 * time.Millisecond
	// markerBytes is the size of a batch with a transaction marker.
	markerBytes = 78
)

// fence is the right to publish: a transactional ID, which [Sink.Fence] or the first Publish claims. All lanes write under
// its producer ID. It is safe for concurrent use.
type fence struct {
	log    *slog.Logger
	runCtx context.Context // of the sink
	start  func(func())    // starts a goroutine of the sink
	claim  sinks.Claim
	// replace lets another fence take over, which claims the ID again; nil: another process takes over. One journal is one
	// process's, so only a coordinator that has forgotten the claim deposes that, or a copy of the journal.
	replace func()

	idToken       chan struct{} // holds one token; its holder may use transactional
	transactional *cluster.Transactional
	cluster       *cluster.Cluster
	reader        *cluster.Reader
	acks          *ackLog
	rights        fenceRights

	fenceRounds  *cluster.Coalescer[[]cluster.Partition, fencedEpoch] // fence batches of this process
	recordRounds *cluster.Coalescer[laneStart, struct{}]              // record lanes for later processes

	tailsRead atomic.Bool // ReadTail was called

	mu         sync.Mutex
	current    cluster.ProducerEpoch         // the newest; lanes that were never in doubt continue under older ones
	lanes      map[sinks.Lane]topicLane      // that are recorded, by the names that they have there
	producers  map[int64]bool                // IDs under which this process and earlier ones have written; fixed after the claim
	shapes     map[string]cluster.TopicShape // of the topics that existed at the fence; set by Fence
	partitions map[cluster.Partition]*fencedPartition
	deposed    error
	renewedAt  time.Time // wall clock: the monotonic clock stands still while a machine sleeps
}

// fencedPartition is what is known of a partition.
type fencedPartition struct {
	state    partitionState
	fencedIn protocol.TopicID   // the topic of this name that rejects older epochs, if the state is partitionFenced
	progress *partitionProgress // nil: this process has not written to it
}

// partitionState is what older processes may still write to a partition.
type partitionState uint8

const (
	partitionUnrecorded partitionState = iota // nothing: no process has recorded a lane to it
	partitionRecorded                         // what they had under way: a lane fences it before it writes
	partitionUnfenced                         // as well, and Fence could not fence it: nothing is written until ReadTail has done that
	partitionMissing                          // nothing: it did not exist at the fence, and this process has not written to it
	partitionFenced                           // nothing: it rejects older epochs
)

// become is the only way to another state. Losing a lane's partition after the fence makes it one that may hold records.
func (p *fencedPartition) become(next partitionState) {
	switch {
	case next == partitionRecorded && (p.state == partitionUnfenced || p.state == partitionFenced):
	case next == partitionMissing && (p.state == partitionRecorded || p.state == partitionFenced):
		p.state = partitionRecorded
	default:
		p.state = next
	}
}

// progressIn returns the progress in the topic with this ID; nil if this process has not written to it.
func (p fencedPartition) progressIn(topic protocol.TopicID) *partitionProgress {
	if p.progress != nil && p.progress.topic == topic {
		return p.progress
	}
	return nil
}

// isUnfencedIn reports whether an older process, or this one, may have batches under way to a partition that the topic with
// this ID does not reject: they were for another topic of its name.
func (p fencedPartition) isUnfencedIn(topic protocol.TopicID) bool {
	return p.state != partitionUnrecorded && (p.state != partitionFenced || p.fencedIn != topic)
}

// partitionProgress is how far this process has written a partition. The lane that publishes there uses it, and its
// successor after that lane was released: a broker would drop new records under used numbers as copies.
type partitionProgress struct {
	topic         protocol.TopicID // the progress in another topic of this name is another one
	next          record.ProducerSequence
	inDoubt       bool         // batches behind next may be written
	deliveredUpTo atomic.Int64 // acknowledged records are before this offset, all others at or behind it
}

// producerLanePrefix begins the name of a pseudo-lane that is recorded with the others to remember the producer ID.
const producerLanePrefix = "/producer/"

// Fence implements [sinks.Fenced]. It claims the transactional ID of the group and this sink, and makes all partitions of
// these lanes reject older epochs. Lanes of leaders that do not answer wait: a transaction over their partitions would not
// end before they do, and until then nothing else can be fenced.
func (s *Sink) Fence(ctx context.Context, claim sinks.Claim, lanes []sinks.Lane) (waiting map[sinks.Lane]error, err error) {
	if !s.config.isIdempotent() {
		return nil, errors.New("only numbered records can be fenced: set kafka.idempotence to true")
	}
	f := s.newFence(cluster.TransactionalID(claim.Group, claim.Sink), claim)
	for _, lane := range lanes {
		if text, ok := strings.CutPrefix(string(lane), producerLanePrefix); ok {
			if id, err := strconv.ParseInt(text, 10, 64); err == nil {
				f.producers[id] = true
			}
		} else if l, ok := parseRecordedLane(lane); ok {
			f.lanes[lane] = l
			f.lockedPartition(l.Partition).become(partitionUnfenced)
		}
	}
	check, err := checkLeaders(ctx, s.cluster, s.reader.WithTimeout(leaderTimeout), slices.Collect(maps.Keys(f.partitions)))
	if err != nil {
		return nil, err
	}
	f.shapes = check.shapes
	own, missing, err := f.transactional.FencePartitions(ctx, cluster.NoProducer, check.answering)
	if err != nil {
		return nil, err
	}
	known := f.producers[own.Producer]
	if !known && len(f.producers) > 0 {
		if err := s.delayChangedProducer(f.transactional.ID); err != nil {
			return nil, err
		}
	}
	f.current, f.renewedAt, f.producers[own.Producer] = own, time.Now().Round(0), true
	f.recordFenced(check, missing)
	var current []sinks.Lane // one of each topic, which gets a route without a metadata request
	for topic, shape := range f.shapes {
		if !s.router.hasRoute(topic) { // recorded lanes may be of a former topic of that name, with more partitions
			current = append(current, laneName(topic, 0, shape.Partitions))
		}
	}
	s.ResumeLanes(current)
	if known {
		f.lanes[producerLane(own.Producer)] = topicLane{}
	}
	waiting = map[sinks.Lane]error{}
	for lane, l := range f.lanes {
		if err := check.failed[l.Partition]; err != nil {
			waiting[lane] = err
		}
	}
	s.fence.Store(f)
	s.background.Go(f.runRenewals)
	return waiting, nil
}

// leaderCheck is what the leaders of partitions answered.
type leaderCheck struct {
	answering []cluster.Partition
	missing   []cluster.Partition         // do not exist
	failed    map[cluster.Partition]error // did not answer, or may not be known to all brokers yet
	shapes    map[string]cluster.TopicShape
}

// checkLeaders asks the leaders of partitions for an answer, all at the same time. A broker may not have received the
// metadata of a new topic yet: a partition that it does not know is missing if the others do not know it either.
func checkLeaders(ctx context.Context, c *cluster.Cluster, reader *cluster.Reader, all []cluster.Partition) (leaderCheck, error) {
	check := leaderCheck{failed: map[cluster.Partition]error{}, shapes: map[string]cluster.TopicShape{}}
	spans := make([]*cluster.Span, len(all))
	for i, p := range all {
		spans[i] = &cluster.Span{Partition: p}
	}
	for try := 1; len(spans) > 0; try++ {
		if err := reader.QueryEnds(ctx, spans); err != nil {
			return check, err
		}
		unknown := check.addAnswers(spans)
		spans = check.addMissing(ctx, c, unknown)
		if try == maxUnknownTries {
			for _, s := range spans {
				check.failed[s.Partition] = s.Err
			}
			break
		}
		if len(spans) > 0 && ratelimit.Sleep(ctx, unknownRetryDelay) != nil {
			return check, ctx.Err()
		}
	}
	check.failUnmarkable(ctx, c)
	return check, nil
}

// failUnmarkable lets partitions fail whose topics take no marker, as far as that is known in time: a transaction over one
// of them does not end, and until then nothing else can be fenced.
func (k *leaderCheck) failUnmarkable(ctx context.Context, c *cluster.Cluster) {
	ctx, cancel := context.WithTimeout(ctx, shapeTimeout)
	defer cancel()
	limits := c.TopicNumbers(ctx, slices.Collect(maps.Keys(k.shapes)), "max.message.bytes")
	k.answering = slices.DeleteFunc(k.answering, func(p cluster.Partition) bool {
		limit, known := limits[p.Topic]
		if !known || limit >= markerBytes {
			return false
		}
		k.failed[p] = fmt.Errorf("%s: older exporters cannot be fenced, because it takes no transaction marker: "+
			"max.message.bytes of the topic is %d, set it to 2097152", p, limit)
		return true
	})
}

// addAnswers adds the answers of leaders, and returns the partitions that a broker does not know.
func (k *leaderCheck) addAnswers(spans []*cluster.Span) (unknown []*cluster.Span) {
	for _, s := range spans {
		if s.Shape.Partitions > 0 {
			k.shapes[s.Topic] = s.Shape
		}
		switch {
		case s.Err == nil:
			k.answering = append(k.answering, s.Partition)
		case errors.Is(s.Err, kafka.UnknownTopicOrPartition), errors.Is(s.Err, cluster.ErrNoPartition):
			unknown = append(unknown, s)
		default:
			k.failed[s.Partition] = s.Err
		}
	}
	return unknown
}

// addMissing adds the unknown partitions that do not exist, and returns the others.
func (k *leaderCheck) addMissing(ctx context.Context, c *cluster.Cluster, unknown []*cluster.Span) (others []*cluster.Span) {
	topics := map[string]bool{}
	for _, s := range unknown {
		topics[s.Topic] = true
	}
	if len(topics) == 0 {
		return nil
	}
	shapes, _ := c.TopicShapes(ctx, slices.Sorted(maps.Keys(topics)), shapeTimeout)
	for _, s := range unknown {
		if shape, certain := shapes[s.Topic]; certain && int(s.Index) >= shape.Partitions {
			k.missing = append(k.missing, s.Partition)
		} else {
			others = append(others, s)
		}
	}
	return others
}

// delayChangedProducer returns an error until changedProducerDelay after the first Fence that got another producer ID than
// the earlier processes have recorded: these are not fenced.
func (s *Sink) delayChangedProducer(id string) error {
	if s.producerChangedAt.IsZero() {
		s.producerChangedAt = time.Now()
	}
	left := changedProducerDelay - time.Since(s.producerChangedAt)
	if left <= 0 {
		return nil
	}
	return &sinks.UnavailableError{
		Code: condition.SinkBusy, After: left,
		Reason: fmt.Sprintf("the transactional ID %q had expired and has another producer ID now, so an older exporter that still "+
			"runs is not fenced; this one waits a minute", id),
		Remedy: "make sure that no other exporter of the group runs",
	}
}

// LaneProgress implements [sinks.Fenced]. Lanes to one partition, as before and after a topic grew, share its progress,
// unless the topic was recreated. What may have gone back is left out: the state keeps how far it had got.
func (s *Sink) LaneProgress() map[sinks.Lane]sinks.LanePosition {
	f := s.fence.Load()
	if !f.isReplicated() {
		return nil
	}
	behind := f.acks.behind()
	f.mu.Lock()
	defer f.mu.Unlock()
	positions := make(map[sinks.Lane]sinks.LanePosition, len(f.lanes))
	for lane, l := range f.lanes {
		if progress := f.lockedPartition(l.Partition).progressIn(l.of.ID); progress != nil && !behind[l.Partition] {
			positions[lane] = sinks.LanePosition(progress.deliveredUpTo.Load())
		}
	}
	return positions
}

// newFence returns a fence whose transactional ID is not claimed.
func (s *Sink) newFence(id string, claim sinks.Claim) *fence {
	f := &fence{
		log: s.log, runCtx: s.runCtx, start: s.background.Go, claim: claim, idToken: make(chan struct{}, 1),
		transactional: cluster.NewTransactional(s.cluster, id), cluster: s.cluster, reader: s.reader, acks: s.acks, current: cluster.NoProducer,
		lanes: map[sinks.Lane]topicLane{}, producers: map[int64]bool{}, partitions: map[cluster.Partition]*fencedPartition{},
	}
	f.idToken <- struct{}{}
	f.fenceRounds = cluster.NewCoalescer(f.start, f.fencePartitions)
	f.recordRounds = cluster.NewCoalescer(f.start, f.recordLanes)
	return f
}

// resume continues what the previous process of a journal has stored: to each of its partitions it may have batches under
// way, and only what the marks say is known of them.
func (f *fence) resume(previous storedParts) {
	f.mu.Lock()
	f.transactional = cluster.NewTransactional(f.cluster, cmp.Or(previous.transactionalID, f.transactional.ID))
	for _, id := range previous.producers {
		f.producers[id], f.lanes[producerLane(id)] = true, topicLane{}
	}
	f.mu.Unlock()
	for partition, acks := range previous.acks {
		end, lane := acks.place(partition)
		f.startPartition(partition, acks.topic, end, true)
		f.mu.Lock()
		f.addLane(recordedLane(laneName(partition.Topic, partition.Index, lane.of.Partitions), acks.topic), lane)
		f.mu.Unlock()
	}
}

// claimOnce claims the transactional ID unless it is claimed. granted is false if this cluster grants none: then nothing
// fences an earlier process.
func (f *fence) claimOnce(ctx context.Context) (granted bool, err error) {
	if granted, known := f.grant(); known {
		return granted, nil
	}
	err = f.advanceEpoch(ctx, func(own cluster.ProducerEpoch) (cluster.ProducerEpoch, error) {
		if _, known := f.grant(); known { // by another lane
			return own, nil
		}
		own, err := f.transactional.InitProducerID(ctx, own)
		f.rights.recordRefusal(ctx, f.transactional, err)
		return own, err
	})
	granted, known := f.grant()
	if known && !granted {
		return false, nil
	}
	return granted, err
}

// checkGranted finds out whether the cluster lets this sink use its transactional ID, unless that is known or being asked.
func (f *fence) checkGranted(ctx context.Context) {
	if _, known := f.grant(); known {
		return
	}
	select {
	case <-f.idToken:
		f.rights.recordRefusal(ctx, f.transactional, f.transactional.FindCoordinator(ctx))
		f.idToken <- struct{}{}
	default:
	}
}

// grant reports whether the transactional ID is claimed, and whether that is known: it is granted, or refused for good.
func (f *fence) grant() (granted, known bool) {
	refused := f.rights.refusal() != nil
	f.mu.Lock()
	defer f.mu.Unlock()
	granted = f.current != cluster.NoProducer
	return granted, granted || refused
}

// addLane adds a lane that is recorded for later processes.
func (f *fence) addLane(name sinks.Lane, l topicLane) {
	f.lanes[name] = l
	f.lockedPartition(l.Partition).become(partitionRecorded)
}

// partition returns what is known of a partition now.
func (f *fence) partition(p cluster.Partition) fencedPartition {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *f.lockedPartition(p)
}

func (f *fence) lockedPartition(p cluster.Partition) *fencedPartition {
	if f.partitions[p] == nil {
		f.partitions[p] = &fencedPartition{}
	}
	return f.partitions[p]
}

// GoneLanes implements [sinks.Fenced]. Gone are the lanes of topics that were deleted, also if there is another topic of the
// name now, and those without a topic ID, which an exporter of 0.9.0 has recorded: this one records them with the ID.
func (s *Sink) GoneLanes(ctx context.Context, lanes []sinks.Lane) (gone []sinks.Lane) {
	f := s.fence.Load()
	if !f.isReplicated() {
		return nil
	}
	suspects := map[string]bool{}
	for _, lane := range lanes {
		if l, ok := parseRecordedLane(lane); ok && l.isGone(f.shapes[l.Topic]) {
			suspects[l.Topic] = true
		}
	}
	if len(suspects) == 0 {
		return nil
	}
	shapes, complete := s.cluster.TopicShapes(ctx, slices.Sorted(maps.Keys(suspects)), shapeTimeout)
	if !complete { // the broker that does not answer may be the one that knows more
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, lane := range lanes {
		l, ok := parseRecordedLane(lane)
		if now, certain := shapes[l.Topic]; ok && certain && l.isGone(now) {
			gone = append(gone, lane)
			delete(f.lanes, lane)
		}
	}
	return gone
}

func producerLane(id int64) sinks.Lane {
	return sinks.Lane(producerLanePrefix + strconv.FormatInt(id, 10))
}

// ensureMayPublish returns an error when this process may not publish. It renews a transactional ID that is too old.
func (f *fence) ensureMayPublish(ctx context.Context) error {
	f.mu.Lock()
	deposed, tooOld := f.deposed, time.Now().Round(0).Sub(f.renewedAt) > maxRenewalAge
	f.mu.Unlock()
	if deposed != nil || !tooOld {
		return deposed
	}
	return f.renewEpoch(ctx)
}

// recordDeposed records that the claim does not hold any more, which is final, and returns the error of that: a DeposedError
// if another process has taken over.
func (f *fence) recordDeposed(err error) error {
	deposed := error(&sinks.DeposedError{Reason: fmt.Sprintf("another process has claimed the transactional ID %q", f.transactional.ID), Err: err})
	if errors.As(err, new(*sinks.DeposedError)) {
		deposed = err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deposed != nil {
		return f.deposed
	}
	if f.deposed = deposed; f.replace != nil {
		f.deposed = fmt.Errorf("the transactional ID is claimed again, and what is in doubt is read: %s", deposed.Error())
		f.log.Warn("brokers do not know the claim of this process; unless one was restored, a copy of the journal is in use by another exporter",
			"transactionalID", f.transactional.ID, "error", deposed)
		f.start(f.replace)
	}
	return f.deposed
}

// recordIfDeposed is recordDeposed for a DeposedError, and returns any other error unchanged.
func (f *fence) recordIfDeposed(err error) error {
	if errors.As(err, new(*sinks.DeposedError)) {
		return f.recordDeposed(err)
	}
	return err
}

// runRenewals keeps the transactional ID from expiring, until the sink is closed or deposed.
func (f *fence) runRenewals() {
	for wait := cluster.RenewInterval; ; {
		if ratelimit.Sleep(f.runCtx, wait) != nil {
			return
		}
		wait = cluster.RenewInterval
		if err := f.renewEpoch(f.runCtx); f.isDeposed() {
			return
		} else if err != nil {
			wait = renewRetryDelay
			f.log.Warn("the transactional ID could not be renewed", "transactionalID", f.transactional.ID, "error", err)
		}
	}
}

// isReplicated reports whether the ID is that of a group with a replicated state. f may be nil.
func (f *fence) isReplicated() bool { return f != nil && f.replace == nil }

func (f *fence) isDeposed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deposed != nil
}

// renewEpoch requests another epoch. Lanes continue under theirs.
func (f *fence) renewEpoch(ctx context.Context) error {
	return f.advanceEpoch(ctx, func(own cluster.ProducerEpoch) (cluster.ProducerEpoch, error) {
		return f.transactional.InitProducerID(ctx, own)
	})
}

// advanceEpoch calls request, for one caller at a time, with the newest epoch, and records the newer one that it returns.
func (f *fence) advanceEpoch(ctx context.Context, request func(own cluster.ProducerEpoch) (cluster.ProducerEpoch, error)) error {
	select {
	case <-f.idToken:
		defer func() { f.idToken <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	own := f.current
	f.mu.Unlock()
	newer, err := request(own)
	if err != nil && newer == own {
		return f.recordIfDeposed(err)
	}
	if own == cluster.NoProducer && newer != own {
		f.start(f.runRenewals)
	} else if err := f.transactional.CheckProducerID(own, newer); err != nil {
		return f.recordDeposed(err)
	}
	f.mu.Lock()
	if f.current, f.renewedAt = newer, time.Now().Round(0); newer != cluster.NoProducer && !f.producers[newer.Producer] {
		f.producers[newer.Producer] = true
	}
	f.mu.Unlock()
	return f.recordIfDeposed(err)
}

// fencedEpoch is the result of fencing several partitions: the epoch to continue under, and why some are not fenced.
type fencedEpoch struct {
	epoch  cluster.ProducerEpoch
	failed map[cluster.Partition]error
}

// fencePartition makes brokers reject what this process, or an older one, has under way to a partition. It returns the epoch
// to continue under.
func (f *fence) fencePartition(ctx context.Context, p cluster.Partition) (cluster.ProducerEpoch, error) {
	fenced, err := f.fenceRounds.Submit(ctx, []cluster.Partition{p})
	return fenced.epoch, cmp.Or(err, fenced.failed[p])
}

// fencePartitions is fencePartition for many. As in Fence, partitions without an answering leader are left out.
func (f *fence) fencePartitions(questions [][]cluster.Partition) (fenced fencedEpoch, err error) {
	asked := map[cluster.Partition]bool{}
	for _, p := range slices.Concat(questions...) { // a lane of before a topic grew and one of after that share partitions
		asked[p] = true
	}
	partitions := slices.Collect(maps.Keys(asked))
	check, err := checkLeaders(f.runCtx, f.cluster, f.reader.WithTimeout(laterLeaderTimeout), partitions)
	if err != nil || len(check.failed) == len(partitions) {
		return fencedEpoch{failed: check.failed}, err
	}
	err = f.advanceEpoch(f.runCtx, func(before cluster.ProducerEpoch) (cluster.ProducerEpoch, error) {
		own, missing, err := f.transactional.FencePartitions(f.runCtx, before, check.answering)
		fenced = fencedEpoch{own, check.failed}
		if err == nil {
			f.recordFenced(check, missing)
		}
		return own, err
	})
	return fenced, err
}

// recordFenced records that the partitions that have answered reject all older epochs. Those of missing, which the
// coordinator has not found, do not exist either.
func (f *fence) recordFenced(check leaderCheck, missing []cluster.Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range check.answering {
		if !slices.Contains(missing, p) {
			f.lockedPartition(p).become(partitionFenced)
			f.partitions[p].fencedIn = check.shapes[p.Topic].ID
		}
	}
	for _, p := range slices.Concat(check.missing, missing) {
		f.lockedPartition(p).become(partitionMissing)
	}
}

// laneStart is a lane, and the position from which this process publishes to it.
type laneStart struct {
	lane     sinks.Lane
	position sinks.LanePosition
}

// ensureLaneRecorded records a lane and the producer ID for later processes, unless both are.
func (f *fence) ensureLaneRecorded(ctx context.Context, one laneStart) error {
	f.mu.Lock()
	_, laneRecorded := f.lanes[one.lane]
	_, producerRecorded := f.lanes[producerLane(f.current.Producer)]
	f.mu.Unlock()
	if laneRecorded && producerRecorded {
		return nil
	}
	_, err := f.recordRounds.Submit(ctx, one)
	return err
}

// recordLanes is ensureLaneRecorded for many lanes.
func (f *fence) recordLanes(all []laneStart) (_ struct{}, err error) {
	lanes := map[sinks.Lane]sinks.LanePosition{}
	f.mu.Lock()
	for _, one := range append(all, laneStart{lane: producerLane(f.current.Producer)}) {
		if _, recorded := f.lanes[one.lane]; !recorded {
			lanes[one.lane] = one.position
		}
	}
	f.mu.Unlock()
	if err := f.claim.RecordLanes(f.runCtx, lanes); err != nil {
		return struct{}{}, f.recordIfDeposed(fmt.Errorf("a lane cannot be recorded for later processes: %w", err))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for lane := range lanes {
		if l, ok := parseRecordedLane(lane); ok {
			f.addLane(lane, l)
		} else {
			f.lanes[lane] = topicLane{}
		}
	}
	return struct{}{}, nil
}

// startPartition returns new progress in a partition, of which nothing of this process is before an offset, or at least
// nothing that was read.
func (f *fence) startPartition(p cluster.Partition, topic protocol.TopicID, end int64, inDoubt bool) *partitionProgress {
	f.mu.Lock()
	defer f.mu.Unlock()
	progress := &partitionProgress{topic: topic, inDoubt: inDoubt,
		next: record.ProducerSequence{Producer: f.current.Producer, Epoch: f.current.Epoch}}
	progress.deliveredUpTo.Store(end)
	f.lockedPartition(p).become(partitionRecorded)
	f.partitions[p].progress = progress
	return progress
}

// recordLost sets the progress in partitions back to what is left of them. What lies behind that is read, and what is
// missing there is written again.
func (f *fence) recordLost(cuts map[cluster.Partition]ackCut) {
	for p, cut := range cuts {
		if progress := f.partition(p).progress; progress != nil {
			f.startPartition(p, progress.topic, cut.end, true)
		}
	}
}

// journalFence is the fence of a sink whose lanes are recorded in its journal, together with its transactional ID, which no
// other sink has. It is safe for concurrent use.
type journalFence struct {
	sink    *Sink
	save    atomic.Pointer[func(context.Context) error] // stores the state with the cursors; nil: it is not stored
	current atomic.Pointer[fence]                       // Fence leaves it as it is; nil without idempotence
}

func (j *journalFence) newFence() *fence {
	f := j.sink.newFence(cluster.TransactionalID("kubecdc", rand.Text()[:13]), sinks.Claim{RecordLanes: j.recordLanes}) // 65 bits
	f.replace = j.replaceFence
	return f
}

// replaceFence lets a new fence go on where one ended, as a restart does.
func (j *journalFence) replaceFence() {
	before, f := j.current.Load(), j.newFence()
	parts := before.storedParts()
	j.sink.acks.mu.Lock()
	parts.acks = j.sink.acks.partitions
	f.resume(parts)
	j.sink.acks.mu.Unlock()
	j.current.Store(f)
	j.sink.fence.CompareAndSwap(before, f)
}

// recordLanes makes it durable where lanes begin, for a later process of this journal.
func (j *journalFence) recordLanes(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition) error {
	j.sink.acks.recordBegin(lanes)
	if save := j.save.Load(); save != nil && *save != nil {
		return (*save)(ctx)
	}
	return nil
}

// fenceRights is what the cluster does not let a sink do. It is safe for concurrent use.
type fenceRights struct {
	mu      sync.Mutex
	refused error // why no transactional ID may be used; nil: none was claimed, or it was granted
	unread  error // why a partition may not be read; nil: all may
}

func (r *fenceRights) refusal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// recordRefusal records an error that no later request would change: a missing right, brokers without transactions, or with
// too few replicas for the log of these.
func (r *fenceRights) recordRefusal(ctx context.Context, id *cluster.Transactional, err error) {
	switch {
	case errors.Is(err, kafka.TransactionalIDAuthorizationFailed), errors.Is(err, kafka.UnsupportedVersion):
	case errors.As(err, new(*sinks.UnavailableError)) && errors.Is(err, kafka.GroupCoordinatorNotAvailable) && !id.HasLog(ctx):
	default:
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = err
}

// recordUnread records the error of reading a partition if that is a missing right, and reports whether it is.
func (r *fenceRights) recordUnread(err error) bool {
	if !errors.Is(err, kafka.TopicAuthorizationFailed) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread = err
	return true
}

// warning returns what is not guaranteed because a right is missing; "" if none is.
func (r *fenceRights) warning() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.refused != nil:
		return fmt.Sprintf("%v: after a crash, what was in flight is written again, and a late batch of the crashed process may follow a newer one; "+
			"grant WRITE on TRANSACTIONAL_ID with the prefix kubecdc-, and restart", r.refused)
	case r.unread != nil:
		return fmt.Sprintf("%v: after a crash or a failure, what was in flight is written again", r.unread)
	}
	return ""
}
