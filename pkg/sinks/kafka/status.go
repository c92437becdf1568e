package kafka

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// State says whether the sink delivers.
type State string

// The states of a sink.
const (
	Connecting  State = "connecting"  // nothing was acknowledged yet, and nothing failed
	Ready       State = "ready"       // the last requests succeeded
	Throttled   State = "throttled"   // a quota of Kafka makes us wait between requests; changes are delivered at its pace
	Unavailable State = "unavailable" // changes are held back; the reason says what has to happen
)

// Status is a State and, when Unavailable or Throttled, the reason in a sentence for people.
type Status struct {
	State  State
	Reason string
}

// status follows what works and what does not: the whole cluster, under the scope "", and topics that refuse us, each
// under its name. It writes one log line per change, none per retry. It is safe for concurrent use.
type status struct {
	log *slog.Logger

	mu       sync.Mutex
	worked   bool
	troubles map[string]string // scope → reason
}

func newStatus(log *slog.Logger) *status {
	return &status{log: log, troubles: map[string]string{}}
}

// works notes a success with a topic, which is one of the cluster too.
func (s *status) works(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worked && len(s.troubles) == 0 {
		return
	}
	_, cluster := s.troubles[""]
	_, own := s.troubles[topic]
	if s.worked && !cluster && !own {
		return
	}
	s.worked = true
	delete(s.troubles, "")
	delete(s.troubles, topic)
	s.log.Info("kafka delivers", "topic", topic)
}

// found notes that the cluster answers, and a topic is there. That nothing was acknowledged yet stays as it is.
func (s *status) found(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.troubles)
	delete(s.troubles, "")
	delete(s.troubles, topic)
	if len(s.troubles) < before {
		s.log.Info("kafka is there")
	}
}

// fails notes that a scope is in trouble.
func (s *status) fails(scope, reason string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.troubles[scope]; !known {
		s.log.Warn("kafka does not take changes; they are held until it does", "reason", reason, "error", err)
	}
	s.troubles[scope] = reason
}

func (s *status) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.troubles) > 0 {
		scope := slices.MinFunc(slices.Collect(maps.Keys(s.troubles)), cmp.Compare[string])
		return Status{Unavailable, s.troubles[scope]}
	}
	if !s.worked {
		return Status{State: Connecting}
	}
	return Status{State: Ready}
}
