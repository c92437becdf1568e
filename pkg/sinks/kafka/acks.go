package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// maxAckMarks bounds what is remembered of a partition. The distance of the marks grows into the past.
	maxAckMarks = 8
	// ackMarkInterval is the smallest distance of two marks: what is sent again after a loss begins at a mark.
	ackMarkInterval = time.Second
	// newestLeadTimeout bounds the question to all brokers whether a leader is the newest one.
	newestLeadTimeout = 2 * time.Second
)

// ackLog remembers where the partitions hold what was acknowledged, and finds out whether they still do. A partition goes
// back when a broker is restored from an older copy, loses power before it has synced its disk, or is elected although it
// lagged: its log ends earlier then, and later records take the same offsets. It is safe for concurrent use.
//
// A partition is compared with its leader's log before the first batch of this process, when an answer contradicts what is
// remembered, and every half minute. It holds what was acknowledged if the leader epoch of that reaches to the end of it
// (KIP-101), or if the batch that ends there is ours.
type ackLog struct {
	runCtx  context.Context // of the sink
	log     *slog.Logger
	cluster *cluster.Cluster
	reader  *cluster.Reader
	spacing time.Duration // of marks
	rounds  *cluster.Coalescer[[]cluster.Partition, map[cluster.Partition]error]

	mu         sync.Mutex
	partitions map[cluster.Partition]*partitionAcks
	loss       *sinks.LostError             // until the caller goes back; nil: none
	cuts       map[cluster.Partition]ackCut // what is left of the partitions of loss
	warned     sync.Once                    // of a missing right
}

// partitionAcks is what was acknowledged in one partition.
type partitionAcks struct {
	topic       protocol.TopicID
	leaderEpoch int32     // one in which the partition held all of it; -1: unknown
	marks       []ackMark // in the order of the partition
	unplaced    uint64    // lowest offset in the journal of messages at an unknown place behind the marks; 0: none
	doubt       ackDoubt
	begin       ackBegin
	restored    ackRestored
}

// ackBegin is where a lane to a partition began, the first or one of after the topic grew: without a later mark, what an
// earlier process had in flight lies there or behind it.
type ackBegin struct {
	end        int64
	partitions int // that the topic had for the lane
}

// ackRestored is what the previous process had acknowledged, for this one: the cursor that is stored with the state may be
// older.
type ackRestored struct {
	upTo       uint64 // offset of the newest message; 0: none
	partitions int    // that the topic had for its lane
}

// ackDoubt is how certain it is that a partition holds what it had acknowledged. Nothing is published while it is in doubt.
type ackDoubt int

const (
	ackTrusted      ackDoubt = iota
	ackUncompared            // since the start of this process
	ackContradicted          // an answer suggests that it went back: the newest batch is read
	ackRefuted               // an answer has shown it
)

// ackMark is a place in a partition: behind an acknowledged batch, behind the last one of a tail that was read, which was in
// flight before, or where the replicated state has the progress of other processes.
type ackMark struct {
	first      uint64 // lowest offset in the journal of the messages between the mark before and this one; 0: none
	last       uint64 // offset in the journal of the message before the mark; 0: it is that of a tail, or of others
	partitions int    // that the topic had for the lane
	origin     protocol.Origin
	begunAt    time.Time // zero: by an earlier process
}

// ackCut is what is left of a partition.
type ackCut struct {
	end         int64 // as far as is known, what lies before it was acknowledged and is still there
	held        int64 // the partition has something up to here that may be it
	marked      bool  // there is a mark at the end
	partitions  int   // that the topic has now
	leaderEpoch int32
}

func newAckLog(runCtx context.Context, start func(func()), c *cluster.Cluster, reader *cluster.Reader, log *slog.Logger) *ackLog {
	a := &ackLog{runCtx: runCtx, log: log, cluster: c, reader: reader, spacing: ackMarkInterval, partitions: map[cluster.Partition]*partitionAcks{}}
	a.rounds = cluster.NewCoalescer(start, a.examine)
	return a
}

// end is the offset behind everything that was acknowledged.
func (p *partitionAcks) end() int64 {
	if newest := p.newestMark(); newest != nil {
		return newest.origin.End
	}
	return 0
}

type ackPlace struct {
	cluster.Partition
	shape       cluster.TopicShape
	leaderEpoch int32
}

// recordAck records that a batch was acknowledged. An answer with an offset that was acknowledged before means that the
// partition went back.
func (a *ackLog) recordAck(to ackPlace, f *inFlightBatch, at record.ProducerSequence) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.partitionIn(to.Partition, to.shape.ID)
	if f.written.BaseOffset >= 0 && f.written.BaseOffset < p.end() {
		p.doubt = ackRefuted
	}
	if f.written.BaseOffset < 0 || p.doubt != ackTrusted {
		p.unplaced = lowestOffset(p.unplaced, f.offsets[0])
		return
	}
	p.addMark(a.spacing, ackMark{
		first: lowestOffset(p.unplaced, f.offsets[0]), last: f.offsets[len(f.offsets)-1], partitions: to.shape.Partitions, begunAt: time.Now(),
		origin: protocol.Origin{Producer: at.Producer, Epoch: at.Epoch, Sequence: at.Sequence, End: f.written.BaseOffset + int64(f.records)},
	})
	p.unplaced, p.leaderEpoch = 0, max(p.leaderEpoch, to.leaderEpoch)
}

// partitionIn returns what is known of a partition of a topic; nothing of another topic of its name. It requires mu.
func (a *ackLog) partitionIn(partition cluster.Partition, topic protocol.TopicID) *partitionAcks {
	p := a.partitions[partition]
	if p == nil || p.topic != topic {
		p = &partitionAcks{topic: topic, leaderEpoch: -1}
		a.partitions[partition] = p
	}
	return p
}

// lowestOffset returns the lower of two offsets of the journal; 0 stands for none.
func lowestOffset(a, b uint64) uint64 {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// isOfOthers reports whether other processes have published what lies between the mark before and this one.
func (m ackMark) isOfOthers() bool { return m.last == 0 && m.origin.Producer == cluster.NoID }

// newestMark returns the newest mark; nil if there is none.
func (p *partitionAcks) newestMark() *ackMark {
	if len(p.marks) == 0 {
		return nil
	}
	return &p.marks[len(p.marks)-1]
}

// newestAck returns the newest mark behind what was acknowledged; nil if there is none.
func (p *partitionAcks) newestAck() *ackMark {
	for i := range slices.Backward(p.marks) {
		if p.marks[i].last > 0 {
			return &p.marks[i]
		}
	}
	return nil
}

// addMark adds a mark, or moves the newest one while it is recent.
func (p *partitionAcks) addMark(spacing time.Duration, m ackMark) {
	newest := p.newestMark()
	if newest != nil && newest.partitions == m.partitions && newest.isOfOthers() == m.isOfOthers() && (newest.last == 0) == (m.last == 0) &&
		(m.last == 0 || m.begunAt.Sub(newest.begunAt) < spacing) {
		newest.first, newest.last, newest.origin = lowestOffset(newest.first, m.first), m.last, m.origin
		return
	}
	if p.marks = append(p.marks, m); len(p.marks) > maxAckMarks {
		p.mergeMark(p.mostDispensableMark())
	}
}

// mostDispensableMark returns the mark without which the distances from the newest one grow most evenly.
func (p *partitionAcks) mostDispensableMark() (at int) {
	distance := func(i int) float64 {
		end := int64(0)
		if i >= 0 {
			end = p.marks[i].origin.End
		}
		return float64(p.end() - end + 1)
	}
	smallest := math.Inf(1)
	for i := range len(p.marks) - 1 {
		if growth := distance(i-1) / distance(i+1); growth < smallest {
			smallest, at = growth, i
		}
	}
	return at
}

// mergeMark removes a mark and adds its messages to the next one.
func (p *partitionAcks) mergeMark(i int) {
	removed, next := p.marks[i], &p.marks[i+1]
	if next.first = lowestOffset(next.first, removed.first); next.partitions != removed.partitions {
		next.partitions = 0
	}
	p.marks = slices.Delete(p.marks, i, i+1)
}

// contradict records that a broker does not know the numbers of a lane.
func (a *ackLog) contradict(partition cluster.Partition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.partitions[partition]; p != nil {
		p.doubt = max(p.doubt, ackContradicted)
	}
}

// behind returns the partitions that have lost what they had acknowledged, or were not compared with it yet.
func (a *ackLog) behind() map[cluster.Partition]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[cluster.Partition]bool{}
	for partition, p := range a.partitions {
		if p.doubt == ackUncompared || p.doubt == ackRefuted {
			all[partition] = true
		}
	}
	return all
}

func (a *ackLog) recordBegin(lanes map[sinks.Lane]sinks.LanePosition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for lane, position := range lanes {
		if l, ok := parseRecordedLane(lane); ok {
			a.partitionIn(l.Partition, l.of.ID).begin = ackBegin{int64(position), l.of.Partitions}
		}
	}
}

// place returns the end of what the previous process certainly had acknowledged, and the lane in which it had.
func (p *partitionAcks) place(in cluster.Partition) (end int64, lane topicLane) {
	end, partitions := p.begin.end, p.begin.partitions
	if newest := p.newestAck(); newest != nil && newest.origin.End > end {
		end, partitions = newest.origin.End, cmp.Or(newest.partitions, partitions)
	}
	return end, topicLane{in, cluster.TopicShape{ID: p.topic, Partitions: partitions}}
}

// leaveFormerRouting adapts what is known of a partition to other routes: what it loses may belong to any lane now. Without
// an ID, the topic may be one of other brokers.
func (p *partitionAcks) leaveFormerRouting(in cluster.Partition) {
	end, lane := p.place(in)
	p.begin = ackBegin{end, lane.of.Partitions}
	if p.topic == (protocol.TopicID{}) {
		p.marks = nil
	}
	for i := range p.marks {
		p.marks[i].partitions = 0
	}
}

// creditRestored returns how many messages at the head of batch the previous process had acknowledged.
func (a *ackLog) creditRestored(partition cluster.Partition, shape cluster.TopicShape, batch []sinks.Message) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.partitions[partition]
	if p == nil || p.topic != shape.ID || p.restored.partitions != shape.Partitions {
		return 0
	}
	for n < len(batch) && batch[n].Offset <= p.restored.upTo {
		n++
	}
	return n
}

// restore adds what the previous process knew; newest is 0 if it had other messages. What a replicated state says is newer
// than what the journal does. trusted: messages up to newest count as acknowledged if the previous process had them so.
func (a *ackLog) restore(previous map[cluster.Partition]*partitionAcks, newest uint64, trusted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for partition, p := range previous {
		if newest == 0 {
			p.leaveFormerRouting(partition)
		} else if mark := p.newestAck(); trusted && mark != nil {
			p.restored = ackRestored{min(mark.last, newest), mark.partitions}
		}
		if now := a.partitions[partition]; now != nil {
			if now.topic != p.topic {
				continue
			}
			end := p.end()
			for _, m := range now.marks {
				if m.origin.End > end {
					p.marks, p.leaderEpoch = append(p.marks, m), max(p.leaderEpoch, now.leaderEpoch)
				}
			}
		}
		a.partitions[partition] = p
	}
}

// recordPosition records a position of the replicated state. One behind the end of its partition shows that this went back.
func (a *ackLog) recordPosition(of ackPlace, position int64, isBehindEnd bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.partitionIn(of.Partition, of.shape.ID)
	if position > p.end() {
		p.addMark(a.spacing, ackMark{partitions: of.shape.Partitions, origin: protocol.Origin{Producer: cluster.NoID, End: position}})
	}
	if p.leaderEpoch = max(p.leaderEpoch, of.leaderEpoch); isBehindEnd {
		p.doubt = max(p.doubt, ackUncompared)
	}
}

// recordTail records the last batch of a partition that was read to its end: this process skips what it finds there, and
// sends that again if the partition loses it. first is the lowest offset in the journal of what may be skipped.
func (a *ackLog) recordTail(of ackPlace, last protocol.Origin, first uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.partitionIn(of.Partition, of.shape.ID); last.End > p.end() {
		p.addMark(a.spacing, ackMark{first: first, partitions: of.shape.Partitions, origin: last})
		p.leaderEpoch = max(p.leaderEpoch, of.leaderEpoch)
	}
}

// confirm returns nil if a partition is not in doubt, after it has compared it if necessary. After a loss it returns a
// [sinks.LostError] for every partition.
func (a *ackLog) confirm(ctx context.Context, partition cluster.Partition) error {
	a.mu.Lock()
	p := a.partitions[partition]
	inDoubt := p != nil && p.doubt != ackTrusted
	a.mu.Unlock()
	if err := a.lostError(); err != nil || !inDoubt {
		return err
	}
	failed, err := a.rounds.Submit(ctx, []cluster.Partition{partition})
	return cmp.Or(err, a.lostError(), failed[partition])
}

// confirmAll compares all partitions, and reports whether all could be compared.
func (a *ackLog) confirmAll() (complete bool) {
	a.mu.Lock()
	all := slices.Collect(maps.Keys(a.partitions))
	a.mu.Unlock()
	failed, err := a.rounds.Submit(a.runCtx, all)
	return err == nil && len(failed) == 0
}

// lostError returns the loss that the caller has not accepted yet.
func (a *ackLog) lostError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loss == nil {
		return nil
	}
	return a.loss
}

// examine compares partitions, and all others if one of them went back: the caller goes back once for all. It returns why
// some could not be compared.
func (a *ackLog) examine(questions [][]cluster.Partition) (failed map[cluster.Partition]error, err error) {
	asked := slices.Concat(questions...)
	found, failed, err := a.comparePartitions(asked)
	if len(found) == 0 || err != nil {
		return failed, err
	}
	a.mu.Lock()
	others := slices.DeleteFunc(slices.Collect(maps.Keys(a.partitions)), func(p cluster.Partition) bool { return slices.Contains(asked, p) })
	a.mu.Unlock()
	more, _, _ := a.comparePartitions(others)
	maps.Copy(found, more)
	a.recordLoss(found)
	return failed, nil
}

// comparedAcks is what was known of a partition when its comparison began.
type comparedAcks struct {
	partitionAcks
	of  *partitionAcks
	cut ackCut // once it is compared and went back
}

// comparePartitions returns the partitions that went back, and why some could not be compared.
func (a *ackLog) comparePartitions(all []cluster.Partition) (
	lost map[cluster.Partition]*comparedAcks, failed map[cluster.Partition]error, err error,
) {
	lost, failed = map[cluster.Partition]*comparedAcks{}, map[cluster.Partition]error{}
	var spans []*cluster.Span
	known := map[cluster.Partition]*comparedAcks{}
	a.mu.Lock()
	for _, partition := range all {
		if p := a.partitions[partition]; p != nil && known[partition] == nil {
			c := &comparedAcks{partitionAcks: *p, of: p}
			c.marks = slices.Clone(p.marks)
			known[partition] = c
			spans = append(spans, &cluster.Span{Partition: partition, AskedEpoch: p.leaderEpoch})
		}
	}
	a.mu.Unlock()
	if err := a.reader.WithTimeout(laterLeaderTimeout).QueryEpochEnds(a.runCtx, spans); err != nil {
		return nil, nil, err
	}
	for _, s := range spans {
		c := known[s.Partition]
		cut, verdict, err := a.compare(s, &c.partitionAcks)
		switch {
		case err != nil:
			failed[s.Partition] = fmt.Errorf("%s: comparing it with what was acknowledged: %w", s.Partition, err)
		case verdict == ackLost:
			c.cut, lost[s.Partition] = cut, c
		default:
			a.recordHeld(s, c, verdict)
		}
	}
	return lost, failed, nil
}

// recordHeld records that a partition holds what it had acknowledged, or is one of another topic, unless it has become
// another one meanwhile, or come into doubt.
func (a *ackLog) recordHeld(s *cluster.Span, c *comparedAcks, v ackVerdict) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch p := a.partitions[s.Partition]; {
	case p != c.of || p.doubt != c.doubt:
	case v == ackGone:
		delete(a.partitions, s.Partition)
	default:
		p.doubt, p.leaderEpoch = ackTrusted, s.Lead.Epoch
	}
}

type ackVerdict int

const (
	ackIntact ackVerdict = iota // it holds what was acknowledged, or retention has removed that, or nothing can be said
	ackGone                     // another topic has its name
	ackLost                     // it went back
)

// compare compares what is remembered of a partition with its leader's log.
func (a *ackLog) compare(s *cluster.Span, p *partitionAcks) (cut ackCut, v ackVerdict, err error) {
	end := p.end()
	if p.leaderEpoch < 0 {
		s.EpochEnd = -1
	}
	switch {
	case end > 0 && errors.Is(s.Err, cluster.ErrNoPartition) && s.Shape.ID == p.topic: // all brokers are from before it grew, or one lags
		shapes, complete := a.cluster.TopicShapes(a.runCtx, []string{s.Topic}, shapeTimeout)
		if now := shapes[s.Topic]; complete && now.ID == p.topic && int(s.Index) >= now.Partitions {
			return ackCut{partitions: now.Partitions}, ackLost, nil
		}
		return cut, ackIntact, nil
	case errors.Is(s.Err, kafka.UnknownTopicOrPartition), errors.Is(s.Err, cluster.ErrNoPartition):
		return cut, ackIntact, nil // if the topic is created again, it has another ID
	case errors.Is(s.Err, kafka.UnsupportedVersion):
		return cut, ackIntact, nil
	case s.Err == nil && s.Shape.ID != p.topic:
		return cut, ackGone, nil
	case s.Err != nil:
		return cut, v, s.Err
	case s.EpochEnd >= end && p.doubt < ackContradicted:
		return cut, ackIntact, nil
	}
	first, replicated, err := a.reader.QueryExtent(a.runCtx, s.Lead, s.Partition)
	if err != nil || first >= end {
		return cut, ackIntact, err
	}
	logEnd, err := a.reader.LogEndOffset(a.runCtx, s.Lead, s.Partition)
	switch {
	case err != nil:
		return cut, v, err
	case logEnd >= end && replicated < end:
		return cut, v, errors.New("its replicas are not in sync yet")
	case logEnd >= end:
		newest := p.newestMark()
		if newest.isOfOthers() {
			return cut, ackIntact, nil
		}
		if holds, err := a.isAt(s, newest.origin, p.doubt != ackRefuted); holds || err != nil {
			return cut, ackIntact, err
		}
	}
	if s.Lead.Epoch < p.leaderEpoch && !a.cluster.IsNewestLead(a.runCtx, s.Lead, s.Partition, newestLeadTimeout) {
		return cut, v, errors.New("the leader that the brokers name may not be the newest one")
	}
	if s.EpochEnd >= 0 {
		logEnd = min(logEnd, s.EpochEnd)
	}
	cut, err = a.findCut(s, p.marks, first, min(logEnd, end))
	cut.partitions, cut.leaderEpoch = s.Shape.Partitions, s.Lead.Epoch
	return cut, ackLost, err
}

// isAt reports whether a partition has a batch where it was acknowledged, or compaction has removed it; believed without the
// right to read it.
func (a *ackLog) isAt(s *cluster.Span, o protocol.Origin, believed bool) (bool, error) {
	now, found, err := a.reader.OriginAt(a.runCtx, s.Lead, s.Partition, o.End-1)
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		a.warned.Do(func() {
			a.log.Warn("cannot read whether a partition still holds what it had acknowledged", "topic", s.Topic, "error", err,
				"remedy", "grant READ on the topics")
		})
		return believed, nil
	}
	return err == nil && (!found || now == o), err
}

// findCut finds the newest mark before an end that the partition still has.
func (a *ackLog) findCut(s *cluster.Span, marks []ackMark, first, end int64) (ackCut, error) {
	for _, m := range slices.Backward(marks) {
		if m.origin.End > end || m.isOfOthers() {
			continue
		}
		there, err := true, error(nil)
		if m.origin.End > first {
			there, err = a.isAt(s, m.origin, true)
		}
		if err != nil {
			return ackCut{}, err
		}
		if there {
			return ackCut{end: m.origin.End, held: end, marked: true}, nil
		}
	}
	return ackCut{end: end, held: end}, nil
}

// recordLoss records what partitions have lost. Only their lanes go back, unless a topic had another number of partitions
// meanwhile: then its changes may have been in other lanes. While the caller has not accepted another loss, which has shown
// it less, and where it has accepted one since the comparison, nothing is recorded: the next comparison finds what there is.
func (a *ackLog) recordLoss(found map[cluster.Partition]*comparedAcks) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cuts := map[cluster.Partition]ackCut{}
	for partition, c := range found {
		if a.partitions[partition] == c.of {
			cuts[partition] = c.cut
		}
	}
	if a.loss != nil || len(cuts) == 0 {
		return
	}
	lost := &sinks.LostError{From: math.MaxUint64, Lanes: map[sinks.Lane]uint64{}, Reason: a.lossReason(cuts)}
	everywhere := false
	for partition, cut := range cuts {
		p := a.partitions[partition]
		p.doubt = ackRefuted
		from, messages, gone := p.lostBehind(cut)
		lost.Messages, lost.Gone = lost.Messages+messages, lost.Gone+gone
		if from == 0 {
			continue
		}
		lost.From = min(lost.From, from-1)
		lost.Lanes[laneName(partition.Topic, partition.Index, cut.partitions)] = from - 1
		everywhere = everywhere || slices.ContainsFunc(p.marks, func(m ackMark) bool {
			return m.partitions != cut.partitions && !m.isOfOthers()
		})
	}
	if everywhere {
		lost.Lanes = nil
	}
	a.loss, a.cuts = lost, cuts
}

// lossReason requires mu.
func (a *ackLog) lossReason(cuts map[cluster.Partition]ackCut) string {
	first := slices.MinFunc(slices.Collect(maps.Keys(cuts)), func(x, y cluster.Partition) int {
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Index, y.Index))
	})
	others := ""
	if n := len(cuts) - 1; n > 0 {
		others = fmt.Sprintf(", as %d others did", n)
	}
	return fmt.Sprintf("%s went back%s: it had acknowledged records up to offset %d and holds them up to %d; a broker was restored from an "+
		"older copy, or lost power before a disk sync, or was elected although it lagged",
		first, others, a.partitions[first].end(), cuts[first].end)
}

// lostBehind returns the lowest offset in the journal of what lies behind a cut, 0 if nothing of this journal does; how many
// messages these are at most; and how many more other processes had published.
func (p *partitionAcks) lostBehind(cut ackCut) (from, messages, gone uint64) {
	from = p.unplaced
	end := cut.end
	for _, m := range p.marks {
		if cut.marked && m.origin.End <= cut.end {
			continue
		}
		if from = lowestOffset(from, m.first); m.isOfOthers() {
			gone += uint64(max(0, m.origin.End-max(end, cut.held)))
		} else {
			messages += uint64(max(0, m.origin.End-end))
		}
		end = max(end, m.origin.End)
	}
	return from, messages, gone
}

// acceptLoss forgets what the partitions have lost, because the caller sends it again, and returns what is left of them.
func (a *ackLog) acceptLoss() map[cluster.Partition]ackCut {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loss == nil {
		return nil
	}
	cuts := a.cuts
	for partition, cut := range cuts {
		p := a.partitions[partition]
		if p == nil || p.doubt != ackRefuted { // it is one of another topic by now
			delete(cuts, partition)
			continue
		}
		if int(partition.Index) >= cut.partitions {
			delete(a.partitions, partition)
			continue
		}
		_, lane := p.place(partition)
		a.partitions[partition] = &partitionAcks{
			topic: p.topic, leaderEpoch: cut.leaderEpoch, begin: ackBegin{cut.end, lane.of.Partitions},
			marks: slices.DeleteFunc(p.marks, func(m ackMark) bool { return !cut.marked || m.origin.End > cut.end }),
		}
	}
	if a.loss.Lanes == nil { // all lanes go back, and what was in one may be for another one now
		for _, p := range a.partitions {
			p.restored = ackRestored{}
		}
	}
	a.loss, a.cuts = nil, nil
	return cuts
}
