package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	sink "github.com/kubecdc/kubecdc/pkg/sinks/history"
)

// What is committed at once. Tests make it less.
var (
	batchChanges = 8192
	batchBytes   = 16 << 20
)

const (
	followEvery = time.Second
	lookEvery   = 200 * time.Millisecond // at an index that another process fills
)

// Source is what a sink has stored, and the folder with the index of it. One goroutine uses it.
type Source struct {
	Dir    string
	Of     string // names the source: an index has one
	Reader sinks.StoredReader
	Routed []string          // templates of topics beside that of the sink
	Say    func(line string) // gets a line when it takes longer, or something else is to know

	index  *sink.Index // nil while the folder is not claimed
	state  *state
	lanes  []*lane
	states states
	batch  []*event.Change
	bytes  int
	late   []*frame
	isGap  bool // a gap of everything is open
	read   int64
	shown  time.Time
}

// state is what a commit has beside the rows.
type state struct {
	Of     string            `json:"of"`
	Lanes  map[string]*place `json:"lanes"`
	Scopes []scope           `json:"scopes"`
	Frames map[string]*frame `json:"frames,omitempty"`
	// Newest is when the newest row of an object of each resource was observed, and the newest version.
	Newest map[string]newest `json:"newest,omitempty"`
}

type newest struct {
	At      time.Time `json:"at"`
	Version string    `json:"version"`
}

func (s *Source) parseState(text json.RawMessage) (*state, error) {
	st := &state{Of: s.Of, Lanes: map[string]*place{}, Frames: map[string]*frame{}, Newest: map[string]newest{}}
	if text == nil {
		return st, nil
	}
	if err := json.Unmarshal(text, st); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Dir, err)
	}
	if st.Of != s.Of {
		return nil, fmt.Errorf("%s is an index of %s, and this is one of %s: name another folder", s.Dir, st.Of, s.Of)
	}
	return st, nil
}

// Fill brings the index up to what the source has now. If another process is at it, that is waited for.
func (s *Source) Fill(ctx context.Context) error {
	err := s.fillOnce(ctx)
	return errors.Join(err, s.release())
}

// Follow goes on filling the index, until ctx ends, which is no error.
func (s *Source) Follow(ctx context.Context) error {
	var err error
	for err == nil && ratelimit.Sleep(ctx, followEvery) == nil {
		err = s.fillOnce(ctx)
	}
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, s.release())
}

func (s *Source) release() (err error) {
	if s.index != nil {
		err = s.index.Close()
	}
	s.index, s.state = nil, nil
	return err
}

func (s *Source) fillOnce(ctx context.Context) error {
	s.shown, s.read = time.Now(), 0
	now, err := s.findLanes(ctx)
	if err != nil {
		return err
	}
	if isDone, err := s.claim(ctx, now); isDone || err != nil {
		return err
	}
	if err := s.openLanes(ctx, now); err != nil {
		return err
	}
	total := int64(0)
	for _, l := range s.lanes {
		total += l.End - l.Next
	}
	for {
		l, err := s.next(ctx)
		if err != nil {
			return err
		}
		if l == nil {
			break
		}
		if err := s.takeFrom(l); err != nil {
			return err
		}
		if len(s.batch) >= batchChanges || s.bytes >= batchBytes {
			if err := s.flush(); err != nil {
				return err
			}
			if time.Since(s.shown) > time.Second {
				s.shown = time.Now()
				s.Say(fmt.Sprintf("indexed %d of %d records", s.read, total))
			}
		}
	}
	for _, l := range s.lanes {
		l.Next, l.starts = l.End, false
	}
	for _, f := range s.state.Frames {
		s.settle(f, time.Now())
	}
	for ; len(s.late) > 0; s.late = s.late[1:] {
		if err := s.settleLate(ctx, s.late[0]); err != nil {
			return err
		}
	}
	if total == 0 && len(s.batch) == 0 {
		return nil
	}
	return s.flush()
}

// findLanes returns the lanes of all topics, or of the stream.
func (s *Source) findLanes(ctx context.Context) (all []sinks.StoredLane, err error) {
	targets, err := s.Reader.Targets(ctx, s.Routed...)
	if err != nil {
		return nil, err
	}
	var absent error
	for _, target := range targets {
		lanes, err := s.Reader.StoredLanes(ctx, target)
		if err != nil && condition.ProblemOf(err, "").Code == condition.SinkTargetMissing { // one of several, that has nothing yet
			absent = err
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, l := range lanes {
			if l.Replaces {
				return nil, fmt.Errorf("%s keeps only the newest record of an object, or its settings may not be read: for Kafka see "+
					"cleanup.policy, and the right DESCRIBE_CONFIGS", target)
			}
		}
		all = append(all, lanes...)
	}
	if len(all) == 0 && absent == nil {
		absent = errors.New("no topic of the sink exists yet")
	}
	if len(all) > 0 {
		absent = nil
	}
	return all, absent
}

// claim claims the folder, unless the index has everything that the lanes have now.
func (s *Source) claim(ctx context.Context, now []sinks.StoredLane) (isDone bool, err error) {
	for said := false; s.index == nil; {
		m, err := history.ReadManifest(history.Folder(s.Dir))
		if err != nil {
			return false, err
		}
		st, err := s.parseState(m.Read)
		if err != nil || m.Read != nil && st.has(now) {
			return err == nil, err
		}
		s.index, err = sink.OpenIndex(s.Dir)
		if errors.Is(err, history.ErrLocked) {
			if !said {
				s.Say("another command fills the index in " + s.Dir + ": waiting until it has what there is now")
			}
			said, err = true, ratelimit.Sleep(ctx, lookEvery)
		}
		if err != nil {
			return false, err
		}
		s.state = nil
	}
	if s.state != nil {
		return s.state.has(now), nil
	}
	s.states, s.batch, s.bytes = states{objects: map[string][]byte{}}, nil, 0
	if s.index.Read() != nil {
		s.states.load = func(set func(string, []byte) bool) error {
			return s.index.States(ctx, s.Dir, history.Match{}, func(c *event.Change) bool { return set(c.Key(), c.After) })
		}
	}
	s.state, err = s.parseState(s.index.Read())
	return false, err
}

// has reports whether the lanes were read to their ends, and nothing waits.
func (s *state) has(now []sinks.StoredLane) bool {
	for _, l := range now {
		if at := s.Lanes[(&lane{StoredLane: l}).name()]; at == nil || at.Next != l.End {
			return false
		}
	}
	for _, f := range s.Frames {
		if f.Held != nil {
			return false
		}
	}
	return true
}

// openLanes lets the lanes go on where they were read last.
func (s *Source) openLanes(ctx context.Context, now []sinks.StoredLane) error {
	var last []sinks.StoredSpan
	s.lanes = nil
	for _, found := range now {
		l := &lane{StoredLane: found}
		if l.place = s.state.Lanes[l.name()]; l.place == nil {
			l.place = &place{Next: found.First, Last: -1}
			s.state.Lanes[l.name()] = l.place
			l.starts = found.Truncated
		}
		s.lanes = append(s.lanes, l)
		span := sinks.StoredSpan{StoredLane: found, From: l.Last, To: l.Last + 1}
		if l.Last < found.First || l.Last < 0 || l.Last >= found.End {
			span.From, span.To = 0, 0
		}
		last = append(last, span)
	}
	sums := map[string]uint32{}
	err := s.Reader.ReadStored(ctx, last, func(r sinks.StoredRecord) error {
		if l := s.lanes[r.Lane]; r.Position == l.Last {
			it := &lane{place: &place{}}
			it.add(r)
			sums[l.name()] = it.ahead[0].sum
		}
		return nil
	})
	if err != nil {
		return err
	}
	lost, since := "", time.Time{} // since when not everything is known
	record := func(reason string, read time.Time) {
		if reason != "" {
			if lost = reason; since.IsZero() || read.Before(since) {
				since = read
			}
		}
	}
	for _, l := range s.lanes {
		record(l.checkPlace(sums), l.Time)
	}
	for name, gone := range s.state.Lanes {
		if !slices.ContainsFunc(s.lanes, func(l *lane) bool { return l.name() == name }) {
			record(name+" does not exist any more", gone.Time)
			delete(s.state.Lanes, name)
		}
	}
	if lost != "" {
		if since.IsZero() { // a lane had nothing before
			since = time.Now()
		}
		s.lose(lost, since)
	}
	return nil
}

// takeFrom takes the next record, which a lane has.
func (s *Source) takeFrom(l *lane) error {
	it := l.take()
	l.starts = false
	s.read++
	if it.isRow {
		s.lose(fmt.Sprintf("record %d of %s is a row, of the formats debezium and upsert", it.position, l.name()), it.at)
	}
	c := it.change
	if c == nil || it.isRow || !s.frames(c, it.at) {
		return nil
	}
	s.state.addScope(c)
	s.state.addNewest(c)
	markOmitted(c)
	if err := s.states.describe(c); err != nil {
		return err
	}
	if c.Before = nil; c.Type != event.Watermark {
		s.append(c)
	}
	return nil
}

func (s *Source) append(c *event.Change) {
	s.batch, s.bytes = append(s.batch, c), s.bytes+c.Size()
}

// flush commits the rows, and up to where the lanes were read.
func (s *Source) flush() error {
	var since time.Time
	if len(s.batch) > 0 {
		since = slices.MinFunc(s.batch, func(a, b *event.Change) int { return a.ObservedAt.Compare(b.ObservedAt) }).ObservedAt
	}
	if slices.ContainsFunc(s.lanes, func(l *lane) bool { return l.isNew }) {
		since = time.Time{}
	}
	read, err := json.Marshal(s.state)
	if err == nil {
		err = s.index.Append(s.batch, since, read)
	}
	clear(s.batch)
	s.batch, s.bytes = s.batch[:0], 0
	return err
}
