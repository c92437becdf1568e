package sinktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// memoryDestination is a destination that keeps the contract. A fault makes it violate the contract in one way.
type memoryDestination struct {
	fault string

	mu         sync.Mutex
	down       bool
	busy       int // so many calls are answered with "unavailable"
	held       []Delivered
	ids        map[string]bool
	references []*event.Change // of the sink that keeps references
}

func (m *memoryDestination) newHarness() Harness {
	var instances atomic.Int64
	return Harness{
		New: func(testing.TB) sinks.Sink { return &memorySink{memoryDestination: m, instance: instances.Add(1)} },
		Read: func(testing.TB) []Delivered {
			m.mu.Lock()
			defer m.mu.Unlock()
			all := append([]Delivered(nil), m.held...)
			for _, c := range m.references {
				all = append(all, deliveredOf(c))
			}
			return all
		},
		Key: (*event.Change).Key, Tombstones: true, ExactRetry: true, ExactReplay: true,
		Topics: []string{"audit.{resource}", "copy.{name}"}, Escape: upperCaseEscape,
		Cut:      func(testing.TB) { m.setDown(true) },
		Restore:  func(testing.TB) { m.setDown(false) },
		Slow:     func(_ testing.TB, on bool) { m.setBusy(on) },
		Throttle: func(_ testing.TB, on bool) { m.setBusy(on) },
	}
}

func (m *memoryDestination) setDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
}

func (m *memoryDestination) setBusy(busy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = 0
	if busy {
		m.busy = 2
	}
}

func deliveredOf(c *event.Change) Delivered {
	return Delivered{ID: c.ID(), Key: c.Key(), Value: format.AppendJSON(nil, c)}
}

type memorySink struct {
	*memoryDestination
	instance int64
}

func (s *memorySink) Lane(c *event.Change) (sinks.Lane, error) {
	return s.LaneTo(c, nil)
}

func (s *memorySink) LaneTo(c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	of := c.Key()
	switch s.fault {
	case "lanes by UID":
		of = c.UID
	case "lanes by type":
		if topic != nil {
			of += string(c.Type)
		}
	case "lanes by instance":
		of = fmt.Sprint(s.instance, c.Key())
	}
	sum := 0
	for _, b := range []byte(of) {
		sum = sum*31 + int(b)
	}
	return sinks.Lane(fmt.Sprint(uint(sum) % 7)), nil
}

func (s *memorySink) Publish(ctx context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	blind := strings.HasPrefix(s.fault, "counts what is not delivered") // ignores everything that keeps it from delivering
	if s.down && !blind {
		return 0, &sinks.UnavailableError{Reason: "down"}
	}
	if s.busy > 0 {
		s.busy--
		return s.answerThrottled(batch)
	}
	if s.fault == "reorders" && len(batch) > 1 {
		s.deliverMessage(batch[1])
	}
	if s.fault == "reorders topics" {
		slices.SortStableFunc(batch, func(a, b sinks.Message) int { return strings.Compare(topicOf(a), topicOf(b)) })
	}
	for i, m := range batch {
		if ctx.Err() != nil && !blind {
			return s.answerInterrupted(i, batch, ctx.Err())
		}
		if s.fault == "rejects large bodies without saying why" && len(m.Change.After) > 100_000 {
			return i, &sinks.RejectedError{Reason: "no"}
		}
		if s.fault == "blames the first for a large body" && slices.ContainsFunc(batch, isLarge) {
			return 0, &sinks.RejectedError{Reason: "too large", TooLarge: true}
		}
		if s.fault == "rejects everything when busy" && len(s.held) == 20 {
			return i, &sinks.RejectedError{Reason: "busy"}
		}
		if !s.down {
			s.deliverMessage(m)
		}
	}
	if s.fault == "counts all and fails" && len(batch) > 0 {
		return len(batch), errors.New("all is well")
	}
	return len(batch), nil
}

func isLarge(m sinks.Message) bool { return len(m.Change.After) > 1_000_000 }

// answerThrottled answers a Publish while the destination throttles.
func (s *memorySink) answerThrottled(batch []sinks.Message) (int, error) {
	switch s.fault {
	case "drops what is throttled":
		return len(batch), nil
	case "gives up what is throttled":
		return 0, &sinks.RejectedError{Reason: "429"}
	}
	return 0, &sinks.UnavailableError{Reason: "429"}
}

// answerInterrupted answers a Publish with a context that ended after n messages.
func (s *memorySink) answerInterrupted(n int, batch []sinks.Message, err error) (int, error) {
	switch s.fault {
	case "hides errors":
		return n, nil
	case "loses what is cancelled":
		return len(batch), nil
	}
	return n, err
}

// topicOf returns the topic of a message; "" for the sink's own.
func topicOf(m sinks.Message) string {
	if m.Topic == nil {
		return ""
	}
	return string(m.Topic.AppendName(nil, m.Change, upperCaseEscape))
}

func (s *memorySink) deliverMessage(m sinks.Message) {
	c := m.Change
	if s.fault == "loses gaps" && c.Type == event.Gap {
		return
	}
	if s.fault == "keeps references" {
		s.references = append(s.references, c)
		return
	}
	d := deliveredOf(c)
	if s.fault != "knows one topic" {
		d.Topic = topicOf(m)
	}
	if s.fault == "makes IDs of its own" {
		d.ID = fmt.Sprint(d.ID, len(s.held))
	}
	if s.fault == "changes values" {
		d.Value = []byte(strings.ToUpper(string(d.Value)))
	}
	if s.fault == "changes keys" {
		d.Key = "key"
	}
	if s.ids[d.ID] && s.fault != "repeats" {
		return
	}
	s.ids[d.ID] = true
	s.held = append(s.held, d)
	if c.Type == event.Deleted && s.fault != "makes no tombstones" {
		s.held = append(s.held, Delivered{Key: d.Key, Tombstone: true})
	}
}

func (s *memorySink) Close(context.Context) error { return nil }

func newMemoryDestination(fault string) *memoryDestination {
	return &memoryDestination{fault: fault, ids: make(map[string]bool)}
}

func TestASinkThatKeepsTheContractPasses(t *testing.T) {
	Run(t, newMemoryDestination("").newHarness())
}

func TestASinkThatBreaksTheContractFails(t *testing.T) {
	for fault, by := range map[string]string{
		"reorders":                                "ChangesArriveInOrderWithTheirIDs",
		"keeps references":                        "ChangesArriveInOrderWithTheirIDs",
		"makes IDs of its own":                    "ChangesArriveInOrderWithTheirIDs",
		"changes values":                          "ChangesArriveInOrderWithTheirIDs",
		"changes keys":                            "ChangesArriveInOrderWithTheirIDs",
		"counts all and fails":                    "ChangesArriveInOrderWithTheirIDs",
		"rejects everything when busy":            "ChangesArriveInOrderWithTheirIDs",
		"lanes by UID":                            "ChangesOfOneObjectShareALane",
		"lanes by instance":                       "LanesKeepTheirNamesAcrossARestart",
		"makes no tombstones":                     "DeletedChangesArrive",
		"loses gaps":                              "GapRecordsArrive",
		"rejects large bodies without saying why": "LargeBodiesArriveOrAreRejectedAlone",
		"hides errors":                            "ACancelledContextKeepsTheWriterRule",
		"loses what is cancelled":                 "ACancelledContextKeepsTheWriterRule",
		"knows one topic":                         "ChangesArriveInTheTopicsTheyAreSentTo",
		"reorders topics":                         "ChangesArriveInTheTopicsTheyAreSentTo",
		"lanes by type":                           "ChangesArriveInTheTopicsTheyAreSentTo",
		"repeats":                                 "AReplayAfterARestartIsRecognised",
		"counts what is not delivered":            "AnOutageLosesNothing",
		"counts what is not delivered at its end": "AStopDuringAnOutageEndsAndLosesNothing",
		"blames the first for a large body":       "OnlyTheOversizedChangeOfABatchIsRejected",
		"drops what is throttled":                 "ThrottlingLosesAndReordersNothing",
		"gives up what is throttled":              "LateAnswersLoseAndReorderNothing",
	} {
		t.Run(fault, func(t *testing.T) {
			for _, promise := range contractTests {
				if promise.name != by {
					continue
				}
				if r := recordFailure(t, promise.test, newMemoryDestination(fault).newHarness()); !r.failed.Load() {
					t.Errorf("%s passed", by)
				}
				return
			}
			t.Errorf("there is no promise %s", by)
		})
	}
}

// failureRecorder is a test that can fail without failing the test that runs it.
type failureRecorder struct {
	testing.TB
	failed atomic.Bool
}

func (r *failureRecorder) Errorf(string, ...any) { r.failed.Store(true) }
func (r *failureRecorder) Fatalf(string, ...any) { r.failed.Store(true); runtime.Goexit() }
func (r *failureRecorder) Fatal(...any)          { r.failed.Store(true); runtime.Goexit() }
func (r *failureRecorder) Logf(string, ...any)   {}

func recordFailure(t *testing.T, test func(testing.TB, Harness), h Harness) *failureRecorder {
	r := &failureRecorder{TB: t}
	done := make(chan struct{})
	go func() { // a separate goroutine, because Fatal ends it
		defer close(done)
		test(r, h)
	}()
	<-done
	return r
}

// upperCaseEscape escapes values in names of topics.
func upperCaseEscape(dst []byte, token string) []byte { return append(dst, strings.ToUpper(token)...) }
