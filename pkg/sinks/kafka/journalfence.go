package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
)

// journalFence is the fence of a sink whose lanes are recorded in its journal, together with its transactional ID, which no
// other sink has. It is safe for concurrent use.
type journalFence struct {
	sink    *Sink
	save    atomic.Pointer[func(context.Context) error] // stores the state with the cursors; nil: it is not stored
	current atomic.Pointer[fence]                       // Fence leaves it as it is; nil without idempotence
}

// open makes the first fence, whose transactional ID counts until one was restored.
func (j *journalFence) open() {
	j.current.Store(j.newFence())
	j.sink.fence.Store(j.current.Load())
}

func (j *journalFence) newFence() *fence {
	f := j.sink.newFence(cluster.TransactionalID("kubecdc", rand.Text()[:13]), sinks.Claim{RecordLanes: j.recordLanes}) // 65 bits
	f.replace = j.replaceFence
	return f
}

// replaceFence lets a new fence go on where one ended, as a restart does.
func (j *journalFence) replaceFence() {
	before, f := j.current.Load(), j.newFence()
	parts := before.storedParts()
	parts.acks = j.sink.acks.places()
	f.resume(parts)
	j.current.Store(f)
	j.sink.fence.CompareAndSwap(before, f)
}

// recordLanes makes it durable where lanes begin, for a later process of this journal.
func (j *journalFence) recordLanes(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition) error {
	j.sink.acks.recordBegin(lanes)
	return j.saveState(ctx)
}

// saveState makes the state of the sink durable, with the cursors.
func (j *journalFence) saveState(ctx context.Context) error {
	if save := j.save.Load(); save != nil && *save != nil {
		return (*save)(ctx)
	}
	return nil
}

// fenceRights is what the cluster does not let a sink do. It is safe for concurrent use.
type fenceRights struct {
	mu      sync.Mutex
	refused error // why no transactional ID may be used; nil: none was claimed, or it was granted
	unread  error // why a partition may not be read; nil: all may
}

func (r *fenceRights) refusal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// recordRefusal records an error that no later request would change: a missing right, brokers without transactions, or with
// too few replicas for the log of these.
func (r *fenceRights) recordRefusal(ctx context.Context, id *cluster.Transactional, err error) {
	var unavailable *sinks.UnavailableError
	switch {
	case errors.Is(err, kafka.TransactionalIDAuthorizationFailed), errors.Is(err, kafka.UnsupportedVersion):
	case errors.As(err, &unavailable) && errors.Is(err, kafka.GroupCoordinatorNotAvailable) && !id.HasLog(ctx):
	default:
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = err
}

// recordUnread records the error of reading a partition if that is a missing right, and reports whether it is.
func (r *fenceRights) recordUnread(err error) bool {
	if !errors.Is(err, kafka.TopicAuthorizationFailed) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread = err
	return true
}

// warning returns what is not guaranteed because a right is missing; "" if none is.
func (r *fenceRights) warning() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.refused != nil:
		return fmt.Sprintf("%v: after a crash, what was in flight is written again, and a late batch of the crashed process may follow a newer one; "+
			"grant WRITE on TRANSACTIONAL_ID with the prefix kubecdc-, and restart", r.refused)
	case r.unread != nil:
		return fmt.Sprintf("%v: after a crash or a failure, what was in flight is written again", r.unread)
	}
	return ""
}
