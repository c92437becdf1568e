package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// memoryBus is an in-memory bus with one state.
type memoryBus struct {
	mu          sync.Mutex
	log         []sinks.StateEntry // from the entry number first on
	first       int
	roundBegin  int // number of the entry that the last round began with, or before the claim
	epoch       int
	purges      int
	failWrite   func() error // called before what is stored as a whole; nil never fails
	atomicBytes int
	beforeClaim func() // called before each claim; may be nil
}

// purgeState removes every entry.
func (m *memoryBus) purgeState() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log, m.first, m.roundBegin, m.purges = nil, 0, 0, m.purges+1
}

// restorePrefix restores the state to its first n entries.
func (m *memoryBus) restorePrefix(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log, m.purges = m.log[:n:n], m.purges+1
}

// memoryStore is the access of one process to a memoryBus.
type memoryStore struct {
	*memoryBus
	claimed, read, seen int
}

func (s *memoryStore) Read(_ context.Context, each func(sinks.StateEntry) error) (bool, error) {
	s.mu.Lock()
	entries, purges, first := slices.Clone(s.log), s.purges, s.first
	s.mu.Unlock()
	if s.seen != purges || s.read < first && s.read > 0 {
		s.seen, s.read = purges, 0
		return true, nil
	}
	for _, e := range entries[max(0, s.read-first):] {
		if err := each(e); err != nil {
			return false, err
		}
	}
	s.read = first + len(entries)
	return false, nil
}

func (s *memoryStore) Claim(context.Context, sinks.Claim) error {
	if s.beforeClaim != nil {
		s.beforeClaim()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.claimed, s.roundBegin = s.epoch, s.first+len(s.log)
	return nil
}

func (s *memoryStore) Append(_ context.Context, entries []sinks.StateEntry, begins bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claimed != s.epoch {
		return &sinks.DeposedError{Reason: "another process has the state"}
	}
	if s.seen != s.purges {
		s.seen, s.read = s.purges, 0
		return &sinks.StateLostError{Reason: "purged"}
	}
	if s.failWrite != nil {
		if err := s.failWrite(); err != nil {
			return err
		}
	}
	if begins {
		s.log, s.first = slices.Clone(s.log[s.roundBegin-s.first:]), s.roundBegin
		s.roundBegin = s.first + len(s.log)
	}
	for _, e := range entries {
		s.log = append(s.log, sinks.StateEntry{Key: slices.Clone(e.Key), Value: slices.Clone(e.Value)})
	}
	return nil
}

func (s *memoryStore) Compacts() bool { return false }

func (s *memoryStore) AtomicBytes() int { return s.atomicBytes }

func (s *memoryStore) Condition() condition.Status { return condition.Status{} }

func (s *memoryStore) Close(context.Context) error { return nil }

// memoryTopic is an in-memory destination whose lanes can be fenced.
type memoryTopic struct {
	mu      sync.Mutex
	name    string
	width   int
	lanes   map[sinks.Lane]*partition
	epoch   int
	away    error
	slow    time.Duration        // how long fencing takes
	stuck   map[sinks.Lane]error // lanes that can neither be fenced nor read
	deleted map[sinks.Lane]bool  // lanes that no longer exist
	compact bool                 // keeps only the newest message of each object
}

type partition struct {
	epoch    int
	messages []sinks.Emitted
	next     sinks.LanePosition
}

func newMemoryTopic(name string, width int) *memoryTopic {
	return &memoryTopic{name: name, width: width, lanes: map[sinks.Lane]*partition{}}
}

func (t *memoryTopic) partitionOf(name sinks.Lane) *partition {
	if t.lanes[name] == nil {
		t.lanes[name] = &partition{next: 1}
	}
	return t.lanes[name]
}

// awaitFence waits until the topic is fenced again.
func (t *memoryTopic) awaitFence(than int) {
	for fenced := false; !fenced; time.Sleep(time.Millisecond) {
		t.mu.Lock()
		fenced = t.epoch > than
		t.mu.Unlock()
	}
}

// stickLane makes a lane stop answering.
func (t *memoryTopic) stickLane(lane sinks.Lane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stuck = map[sinks.Lane]error{lane: errors.New("its broker does not answer")}
}

func (t *memoryTopic) unstick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stuck = nil
}

// messagesByLane returns a copy of the content.
func (t *memoryTopic) messagesByLane() map[sinks.Lane][]sinks.Emitted {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[sinks.Lane][]sinks.Emitted{}
	for name, p := range t.lanes {
		all[name] = slices.Clone(p.messages)
	}
	return all
}

// topicSink is the access of one process to a memoryTopic.
type topicSink struct {
	*memoryTopic
	own   int
	claim sinks.Claim
	noted map[sinks.Lane]bool
	at    map[sinks.Lane]sinks.LanePosition
}

func (t *memoryTopic) openSink() *topicSink {
	return &topicSink{memoryTopic: t, noted: map[sinks.Lane]bool{}, at: map[sinks.Lane]sinks.LanePosition{}}
}

func (s *topicSink) Lane(c *event.Change) (sinks.Lane, error) {
	lane := sinks.KeyHash(c) % uint64(s.width)
	if c.Type == event.Watermark {
		lane = uint64(c.Watermark.Lane)
	}
	return sinks.Lane(fmt.Sprintf("%s/%d", s.name, lane)), nil
}

func (s *topicSink) Fence(ctx context.Context, claim sinks.Claim, lanes []sinks.Lane) (map[sinks.Lane]error, error) {
	select {
	case <-time.After(s.slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away != nil {
		return nil, s.away
	}
	s.epoch++
	s.own, s.claim = s.epoch, claim
	waiting := map[sinks.Lane]error{}
	for _, lane := range lanes {
		s.noted[lane] = true
		if err := s.stuck[lane]; err != nil {
			waiting[lane] = err
			continue
		}
		s.partitionOf(lane).epoch = s.own
	}
	return waiting, nil
}

func (s *topicSink) GoneLanes(_ context.Context, lanes []sinks.Lane) (gone []sinks.Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lane := range lanes {
		if s.deleted[lane] {
			delete(s.noted, lane)
			gone = append(gone, lane)
		}
	}
	return gone
}

func (s *topicSink) SharesObjects(a, b sinks.Lane) bool { return a == b }

func (s *topicSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	if !s.noted[lane] {
		s.mu.Lock()
		next := s.partitionOf(lane).next
		s.mu.Unlock()
		if err := s.claim.RecordLanes(ctx, map[sinks.Lane]sinks.LanePosition{lane: next}); err != nil {
			return 0, err
		}
		s.noted[lane] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.partitionOf(lane)
	if p.epoch > s.own {
		return 0, &sinks.DeposedError{Reason: "fenced"}
	}
	p.epoch = s.own
	for _, m := range batch {
		e := sinks.Emitted{EmittedRecord: m.Change.EmittedRecord()}
		e.Position = p.next
		p.next++
		if s.compact {
			p.messages = slices.DeleteFunc(p.messages, func(o sinks.Emitted) bool {
				return o.Key != "" && o.Key == e.Key && o.Resource == e.Resource
			})
		}
		p.messages = append(p.messages, e)
	}
	s.at[lane] = p.next
	return len(batch), nil
}

func (s *topicSink) LaneProgress() map[sinks.Lane]sinks.LanePosition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.at)
}

func (s *topicSink) ReadTail(
	_ context.Context, tails map[sinks.Lane]sinks.Tail, each func(sinks.Lane, sinks.Emitted) error,
) (map[sinks.Lane]error, error) {
	waiting := map[sinks.Lane]error{}
	for lane, tail := range tails {
		s.mu.Lock()
		p, err := s.partitionOf(lane), s.stuck[lane]
		messages := slices.Clone(p.messages)
		if err == nil {
			p.epoch = max(p.epoch, s.own)
		}
		s.mu.Unlock()
		if err != nil {
			waiting[lane], messages = err, messages[:len(messages)/2]
		}
		for _, m := range messages {
			if m.Position >= tail.From {
				if err := each(lane, m); err != nil {
					return nil, err
				}
			}
		}
	}
	return waiting, nil
}

func (s *topicSink) Close(context.Context) error { return nil }

func appendKnown(b []byte, uid, version string) []byte {
	return form.EncodeValue(b, event.CodeKnown, &event.Known{UID: uid, ResourceVersion: version})
}

func decodeKnown(key, value string) (event.Known, error) {
	k := event.Known{Key: key}
	return k, form.DecodeValue("known object", value, event.CodeKnown, &k)
}
