package kafka

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
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
// under its name. It writes one log line per change, none per retry. What came of a request that was begun before the last
// change is no news: requests overtake each other. It is safe for concurrent use.
type status struct {
	log *slog.Logger

	mu        sync.Mutex
	worked    bool
	heard     time.Time          // when a request that succeeded was begun last
	troubles  map[string]trouble // by scope
	recovered time.Time          // when a trouble ended last
}

type trouble struct {
	reason string
	since  time.Time
	idle   bool // only a look at an idle cluster has met it
}

func newStatus(log *slog.Logger) *status {
	return &status{log: log, troubles: map[string]trouble{}}
}

// works notes that a request with a topic, which is one of the cluster too, succeeded.
func (s *status) works(topic string, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if began.After(s.heard) {
		s.heard = began
	}
	if !s.end(topic, began) && (s.worked || s.troubled(topic)) {
		return
	}
	s.worked = true
	s.log.Info("kafka delivers", "topic", topic)
}

// found notes that the cluster answered, and a topic is there. That nothing was acknowledged yet stays as it is.
func (s *status) found(topic string, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end(topic, began) {
		s.log.Info("kafka is there")
	}
}

// end ends the troubles of a topic and of the cluster that began before a request that succeeded, and says whether there
// were any. mu is held.
func (s *status) end(topic string, began time.Time) bool {
	before := len(s.troubles)
	for _, scope := range []string{"", topic} {
		if t, known := s.troubles[scope]; known && t.since.Before(began) {
			delete(s.troubles, scope)
			s.recovered = time.Now()
		}
	}
	return len(s.troubles) < before
}

// quietSince says that no request has succeeded that was begun after at.
func (s *status) quietSince(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.heard.After(at)
}

// answers notes that the cluster answered a look that was begun then. It ends what looks have met, and nothing else: a
// broker that answers may still refuse changes.
func (s *status) answers(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.troubles[""].idle && s.end("", began) {
		s.log.Info("kafka is there")
	}
}

// troubled says whether a topic, or the cluster, is in trouble. mu is held.
func (s *status) troubled(topic string) bool {
	_, cluster := s.troubles[""]
	_, own := s.troubles[topic]
	return cluster || own
}

// fails notes that a scope is in trouble.
func (s *status) fails(scope, reason string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var late *unanswered
	if errors.As(err, &late) && late.began.Before(s.recovered) {
		return
	}
	s.note(scope, trouble{reason: reason}, err)
}

// silent notes that the cluster did not answer a look that was begun then, unless a request has succeeded since.
func (s *status) silent(began time.Time, reason string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heard.After(began) || s.recovered.After(began) {
		return
	}
	t, known := s.troubles[""]
	s.note("", trouble{reason: reason, idle: t.idle || !known}, err)
}

// note enters a trouble, and says so when it is new. mu is held.
func (s *status) note(scope string, t trouble, err error) {
	if old, known := s.troubles[scope]; known {
		t.since = old.since
	} else {
		t.since = time.Now()
		s.log.Warn("kafka does not take changes; they are held until it does", "reason", t.reason, "error", err)
	}
	s.troubles[scope] = t
}

func (s *status) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.troubles) > 0 {
		scope := slices.MinFunc(slices.Collect(maps.Keys(s.troubles)), cmp.Compare[string])
		return Status{Unavailable, s.troubles[scope].reason}
	}
	if !s.worked {
		return Status{State: Connecting}
	}
	return Status{State: Ready}
}
