package delivery

import (
	"errors"
	"math/rand/v2"

	"k8s.io/client-go/util/workqueue"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// The workqueue takes the back-off of this project as its rate limiter.
var _ workqueue.TypedRateLimiter[*lane] = (*ratelimit.Backoff[*lane])(nil)

// laneQueue is the workqueue of client-go with lanes as its items. It never hands out a lane that a worker holds, so that
// one Publish per lane runs at a time (I3). Safe for concurrent use between open and close.
type laneQueue struct {
	backoff *ratelimit.Backoff[*lane]
	lanes   workqueue.TypedRateLimitingInterface[*lane] // set by open
}

func newLaneQueue(retry RetryConfig) *laneQueue {
	return &laneQueue{backoff: ratelimit.NewBackoff[*lane](retry.Min, retry.Max, rand.Float64)}
}

// open makes the workqueue, which owns goroutines until close.
func (q *laneQueue) open() { q.lanes = workqueue.NewTypedRateLimitingQueue(q.backoff) }

// close makes every nextLane return.
func (q *laneQueue) close() { q.lanes.ShutDown() }

// addLanes adds lanes that became scheduled.
func (q *laneQueue) addLanes(lanes ...*lane) {
	for _, l := range lanes {
		q.lanes.Add(l)
	}
}

// nextLane waits for a lane. The caller must call releaseLane with it. It returns false after close.
func (q *laneQueue) nextLane() (*lane, bool) {
	l, closed := q.lanes.Get()
	return l, !closed
}

// releaseLane lets another worker get the lane.
func (q *laneQueue) releaseLane(l *lane) { q.lanes.Done(l) }

// addAfterBackoff adds a lane again when its back-off after err ends. A sink that probes the cause by itself, or a
// destination that asked for time, bounds the wait.
func (q *laneQueue) addAfterBackoff(l *lane, err error) {
	wait := q.backoff.When(l)
	var probed *sinks.ProbedError
	if errors.As(err, &probed) {
		wait = min(wait, probed.Every)
	}
	var unavailable *laneUnavailableError
	if errors.As(err, &unavailable) {
		wait = max(wait, unavailable.After)
	}
	q.lanes.AddAfter(l, wait)
}

// resetBackoff makes the next failure of the lane count as its first.
func (q *laneQueue) resetBackoff(l *lane) { q.backoff.Forget(l) }
