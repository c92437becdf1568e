package delivery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var (
	_ Journal                = journalFuncs{}
	_ sinks.MultiDestination = sinkFuncs{}
)

type journalFuncs struct {
	read   func(ctx context.Context, after uint64) ([]event.Record, error)
	settle func(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error
}

func (j journalFuncs) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	return j.read(ctx, after)
}

func (j journalFuncs) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	return j.settle(ctx, c, dead)
}

type sinkFuncs struct {
	lane    func(c *event.Change) (sinks.Lane, error) // nil: the namespace of the change
	publish func(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error)

	destination string // of all lanes; "": each lane leads to one of its own
}

func (s sinkFuncs) Lane(c *event.Change) (sinks.Lane, error) {
	if s.lane == nil {
		return sinks.Lane(c.Namespace), nil
	}
	return s.lane(c)
}

func (s sinkFuncs) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	return s.publish(ctx, lane, batch)
}

func (s sinkFuncs) DestinationOf(lane sinks.Lane) string { return cmp.Or(s.destination, string(lane)) }

func (s sinkFuncs) Close(context.Context) error { return nil }

// singleDestination is a sink with one destination for all lanes, as a URL is.
type singleDestination struct{ sinks.Sink }

// changesIn returns records of one change each, offsets from 1; the namespace is the lane.
func changesIn(lanes ...string) []event.Record {
	records := make([]event.Record, len(lanes))
	for i, l := range lanes {
		records[i] = event.Record{Offset: uint64(i + 1), Change: &event.Change{
			Type: event.Updated, Namespace: l, Name: "o", UID: l, ResourceVersion: fmt.Sprint(i + 1),
			ObservedAt: time.Unix(int64(i+1), 0).UTC(),
		}}
	}
	return records
}

// storedProgress is what a journal of fixed records has stored.
type storedProgress struct {
	mu     sync.Mutex
	cursor event.Cursor
	dead   []event.DeadLetter
	writes int
}

func (s *storedProgress) currentProgress() (event.Cursor, []event.DeadLetter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursor, s.dead
}

// journalOf returns a journal of these records, each a frame of its own, that stores into s.
func journalOf(records []event.Record, s *storedProgress) journalFuncs {
	return journalFuncs{
		read: func(ctx context.Context, after uint64) ([]event.Record, error) {
			for i, r := range records {
				if r.Offset > after {
					return records[i : i+1], nil
				}
			}
			<-ctx.Done()
			return nil, ctx.Err()
		},
		settle: func(_ context.Context, c event.Cursor, dead []event.DeadLetter) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.cursor, s.writes = c, s.writes+1
			s.dead = append(s.dead, dead...)
			return nil
		},
	}
}

// afterTheStart returns a journal with records that come when what a start brings with it is over.
func afterTheStart(j journalFuncs) journalFuncs {
	read, begins := j.read, time.Now().Add(startTakes)
	j.read = func(ctx context.Context, after uint64) ([]event.Record, error) {
		time.Sleep(time.Until(begins))
		return read(ctx, after)
	}
	return j
}

// runningPipeline is a pipeline under test.
type runningPipeline struct {
	*Pipeline
	stop context.CancelFunc
	done chan error
	log  *logBuffer
}

// startPipeline starts a pipeline. Its retries wait exactly one second if cfg.Retry is zero.
func startPipeline(t *testing.T, sink sinks.Sink, journal Journal, start event.Cursor, cfg Config) *runningPipeline {
	t.Helper()
	if cfg.Retry == (RetryConfig{}) {
		cfg.Retry = RetryConfig{Min: time.Second, Max: time.Second}
	}
	log := &logBuffer{}
	ctx, cancel := context.WithCancel(context.Background())
	r := &runningPipeline{
		Pipeline: New("test", sink, "", journal, start, cfg, slog.New(slog.NewTextHandler(log, nil))),
		stop:     cancel, done: make(chan error, 1), log: log,
	}
	go func() { r.done <- r.Run(ctx) }()
	t.Cleanup(cancel)
	return r
}

// drainUpTo finishes the pipeline and fails the test unless everything up to upTo is settled.
func (r *runningPipeline) drainUpTo(t *testing.T, upTo uint64) {
	t.Helper()
	r.Drain(upTo)
	if err := <-r.done; err != nil {
		t.Errorf("drain ended with %v", err)
	}
	r.stop()
}

// logBuffer is the log of a pipeline.
type logBuffer struct{ logs.Buffer }

// wantOnce fails the test unless exactly one line of the log contains text.
func (l *logBuffer) wantOnce(t *testing.T, text string) {
	t.Helper()
	if n := l.CountOf(text); n != 1 {
		t.Errorf("%q is logged %d times, want once, in:\n%s", text, n, l.String())
	}
}

// laneRecorder is a destination that accepts everything and records it by lane.
type laneRecorder struct {
	mu    sync.Mutex
	lanes map[sinks.Lane][]uint64
}

func (r *laneRecorder) recordBatch(lane sinks.Lane, batch []sinks.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lanes == nil {
		r.lanes = map[sinks.Lane][]uint64{}
	}
	for _, m := range batch {
		r.lanes[lane] = append(r.lanes[lane], m.Offset)
	}
}

func (r *laneRecorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.lanes)
}

func (r *laneRecorder) wantLanes(t *testing.T, want string) {
	t.Helper()
	if got := r.String(); got != want {
		t.Errorf("destination has %s, want %s", got, want)
	}
}
