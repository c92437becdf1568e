package kafka

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/condition"
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

var (
	untried     = condition.State{Name: string(Connecting), Message: "kafka is there"}
	answering   = condition.State{Name: string(Ready), Message: "kafka is there"}
	delivering  = condition.State{Name: string(Ready), Message: "kafka delivers"}
	unavailable = condition.State{
		Name: string(Unavailable), Severity: condition.NotReady, Level: slog.LevelWarn,
		Message: "kafka does not take changes; they are held until it does",
	}
)

// status is the condition of the cluster, and that of each topic that ever refused changes. What came of a request that was
// begun before the last change is no news: requests overtake each other. It is safe for concurrent use.
type status struct {
	log     *slog.Logger
	cluster *condition.Condition

	// In functions that decide about a change of cluster, which are called one at a time.
	worked bool // something was acknowledged
	idle   bool // only probes have met the trouble there is

	mu     sync.Mutex
	heard  time.Time                       // when a request that succeeded was begun last
	topics map[string]*condition.Condition // by name
}

func newStatus(log *slog.Logger) *status {
	return &status{log: log, cluster: condition.New(log, untried), topics: map[string]*condition.Condition{}}
}

// works notes that a request with a topic, which is one of the cluster too, succeeded.
func (s *status) works(topic string, began time.Time) {
	s.mu.Lock()
	if began.After(s.heard) {
		s.heard = began
	}
	own := s.topics[topic]
	s.mu.Unlock()
	if now := s.cluster.Status(); now.State.Name != string(Ready) {
		s.cluster.BecomeIf(func(now condition.Status) bool {
			news := now.OK() || now.Since.Before(began)
			s.worked = s.worked || news
			return news
		}, delivering, "", "", "topic", topic)
	}
	if own != nil && !own.Status().OK() {
		own.BecomeIf(beganAfter(began), delivering, "", "", "topic", topic)
	}
}

// found notes that the cluster answered, and a topic is there. That nothing was acknowledged yet stays as it is.
func (s *status) found(topic string, began time.Time) {
	s.answered(began, func() bool { return true })
	s.mu.Lock()
	own := s.topics[topic]
	s.mu.Unlock()
	if own != nil {
		own.BecomeIf(beganAfter(began), answering, "", "", "topic", topic)
	}
}

// answers notes that the cluster answered a probe that was begun then. It ends what probes have met, and nothing else: a
// broker that answers may still refuse changes.
func (s *status) answers(began time.Time) {
	s.answered(began, func() bool { return s.idle })
}

// answered ends the trouble of the cluster, if it began before and ends says so.
func (s *status) answered(began time.Time, ends func() bool) {
	if s.cluster.Status().OK() {
		return
	}
	news := func(now condition.Status) bool { return beganAfter(began)(now) && ends() }
	s.cluster.BecomeIf(func(now condition.Status) bool { return s.worked && news(now) }, answering, "", "")
	s.cluster.BecomeIf(func(now condition.Status) bool { return !s.worked && news(now) }, untried, "", "")
}

// beganAfter says of a trouble whether it is older than a request.
func beganAfter(request time.Time) func(condition.Status) bool {
	return func(now condition.Status) bool { return !now.OK() && now.Since.Before(request) }
}

// quietSince says that no request has succeeded that was begun after at.
func (s *status) quietSince(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.heard.After(at)
}

// fails notes that a topic or, under "", the cluster is in trouble.
func (s *status) fails(topic, reason string, err error) {
	var late *unanswered
	overtaken := func(now condition.Status) bool { // by the end of an earlier trouble
		return now.OK() && now.State.Name != "" && errors.As(err, &late) && late.began.Before(now.Since)
	}
	of := s.cluster
	if topic != "" {
		of = s.ofTopic(topic)
	}
	of.BecomeIf(func(now condition.Status) bool {
		if overtaken(now) {
			return false
		}
		if topic == "" {
			s.idle = false
		}
		return true
	}, unavailable, reason, "", "error", err)
}

// ofTopic returns the condition of a topic. A new one has a state without a name.
func (s *status) ofTopic(name string) *condition.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.topics[name]
	if c == nil {
		c = condition.New(s.log, condition.State{})
		s.topics[name] = c
	}
	return c
}

// silent notes that the cluster did not answer a probe that was begun then, unless a request has succeeded since.
func (s *status) silent(began time.Time, reason string, err error) {
	if !s.quietSince(began) {
		return
	}
	s.cluster.BecomeIf(func(now condition.Status) bool {
		if now.OK() && now.Since.After(began) || !now.OK() && !s.idle {
			return false
		}
		s.idle = true
		return true
	}, unavailable, reason, "", "error", err)
}

// status is the trouble of the cluster or, if there is none, that of the first topic in trouble.
func (s *status) status() Status {
	now := s.cluster.Status()
	if now.OK() {
		if topic, ok := s.topicInTrouble(); ok {
			now = topic
		}
	}
	return Status{State(now.State.Name), now.Explanation()}
}

func (s *status) topicInTrouble() (condition.Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, c := range s.topics {
		if !c.Status().OK() {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return condition.Status{}, false
	}
	return s.topics[slices.Min(names)].Status(), true
}
