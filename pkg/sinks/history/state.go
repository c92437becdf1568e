package history

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// held is what a history had when something was acknowledged last: a folder that has another one, or less of it, has lost
// what was acknowledged.
type held struct {
	History  string  `json:"history"`          // identity, see history.Manifest
	Sequence int64   `json:"sequence"`         // of the newest row
	Settled  int64   `json:"settled"`          // and of the newest one that is settled
	Writer   string  `json:"writer,omitempty"` // of that row
	Again    []again `json:"again,omitempty"`  // other rows of changes that may
}

// again is rows of changes that may come again.
type again struct {
	history.Zone
	// Offset of the newest message that may be one of them; 0 if another writer stored some: this exporter may read them from
	// the API server at any time.
	Offset uint64 `json:"offset,omitempty"`
}

// maxAgain bounds how many times that a history was taken over are remembered.
const maxAgain = 8

// clockSkew is how far the clocks of two exporters may be apart.
const clockSkew = time.Hour

// RestoreState implements [sinks.Stateful].
func (s *Sink) RestoreState(state []byte, newest uint64, _ func(context.Context) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.lost: // what is stored is the loss
		s.held, s.lost, s.commits, s.known = held{}, false, nil, 0
	case state != nil && s.held.History == "":
		s.newest = newest
		err := json.Unmarshal(state, &s.held)
		s.known = s.held.Settled
		return err
	}
	return nil
}

// State implements [sinks.Stateful].
func (s *Sink) State(low uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.commits) > 0 && s.commits[0].offset <= low {
		s.held.Settled, s.commits = s.commits[0].sequence, s.commits[1:]
	}
	state, err := json.Marshal(s.held)
	if err != nil {
		panic(err) // a text and a number
	}
	return state
}

// commit says that the rows up to a sequence are of messages up to an offset, or are among the rows that may come again.
type commit struct {
	offset   uint64
	sequence int64
}

// recordHeld records what the folder has now, with the messages up to an offset.
func (s *Sink) recordHeld(offset uint64) {
	m, _ := s.writer.Manifest()
	s.mu.Lock()
	s.known, s.held.Sequence, s.held.Writer = m.LastSequence(), m.LastSequence(), m.Writer
	s.commits = append(s.commits, commit{offset, s.known})
	s.mu.Unlock()
}

// findSeen finds what the folder has and is not known to be settled, and reads what it is known by. since is when the first
// message that may be there was made, or read.
func (s *Sink) findSeen(since time.Time) error {
	m, from := s.writer.Manifest()
	s.mu.Lock()
	all := slices.DeleteFunc(slices.Clone(s.held.Again), func(a again) bool { return a.Offset > 0 && a.Offset <= s.low })
	found := again{Zone: history.Zone{After: s.known, UpTo: m.LastSequence()}}
	if s.held.History == "" { // what this journal sends has been read since its first message
		found.Since = since.Add(-clockSkew).UTC()
	} else if s.held.Writer == from || s.held.Writer == m.Writer {
		found.Offset = max(s.newest, s.sent)
	}
	s.mu.Unlock()
	if found.After < found.UpTo {
		all, s.seen = append(all, found), nil
		all = all[max(0, len(all)-maxAgain):]
	}
	if s.seen == nil || len(all) == 0 {
		var zones []history.Zone
		for _, a := range all {
			zones = append(zones, a.Zone)
		}
		var err error
		if s.seen, err = s.writer.ReadSeen(zones); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if s.known = m.LastSequence(); len(s.commits) == 0 {
		s.held.Settled = s.known
	}
	s.held.History, s.held.Sequence, s.held.Writer, s.held.Again = m.History, s.known, m.Writer, all
	s.mu.Unlock()
	return nil
}

// sinceWhen returns when the earliest of messages was made, or else read.
func sinceWhen(batch []sinks.Message) (since time.Time) {
	for i, m := range batch {
		at := m.Change.ChangedAt.At
		if at.IsZero() {
			at = m.Change.ObservedAt
		}
		if i == 0 || at.Before(since) {
			since = at
		}
	}
	return since
}

// checkHeld returns a *sinks.LostError if the folder does not have what was acknowledged.
func (s *Sink) checkHeld() error {
	s.mu.Lock()
	had := s.held
	s.mu.Unlock()
	m, err := history.ReadManifest(s.store) // which may take its time
	if err != nil || had.Sequence == 0 || m.History == had.History && m.LastSequence() >= had.Sequence {
		return err
	}
	s.mu.Lock()
	s.lost = true
	s.mu.Unlock()
	return &sinks.LostError{Renew: true, Reason: fmt.Sprintf("%s does not hold what was acknowledged up to row %d: the history was removed, "+
		"an older copy is there, or history.dir or history.bucket names another one", s.store, had.Sequence)}
}
