package history

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// held is what a history had when something was acknowledged last: a folder that has another one, or less of it, has lost
// what was acknowledged.
type held struct {
	History  string `json:"history"`  // identity, see history.Manifest
	Sequence int64  `json:"sequence"` // of the newest row
}

// RestoreState implements [sinks.Stateful].
func (s *Sink) RestoreState(state []byte, _ uint64, _ func(context.Context) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.lost: // what is stored is the loss
		s.held, s.lost = held{}, false
	case state != nil && s.held == held{}:
		return json.Unmarshal(state, &s.held)
	}
	return nil
}

// State implements [sinks.Stateful].
func (s *Sink) State(uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, err := json.Marshal(s.held)
	if err != nil {
		panic(err) // a text and a number
	}
	return state
}

// recordHeld records what the folder has now, and returns the sequence of the newest row.
func (s *Sink) recordHeld() int64 {
	name, sequence := s.writer.Position()
	s.mu.Lock()
	s.held = held{name, sequence}
	s.mu.Unlock()
	return sequence
}

// checkHeld returns a *sinks.LostError if the folder does not have what was acknowledged.
func (s *Sink) checkHeld() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := history.ReadManifest(s.cfg.Dir)
	if err != nil || s.held.Sequence == 0 || m.History == s.held.History && m.LastSequence() >= s.held.Sequence {
		return err
	}
	s.lost = true
	return &sinks.LostError{Renew: true, Reason: fmt.Sprintf("%s does not hold what was acknowledged up to row %d: the history was removed, "+
		"an older copy is there, or history.dir names another folder", s.cfg.Dir, s.held.Sequence)}
}
