package election

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// observedLock tells an election what becomes of each request. client-go's own callbacks come without order, and say nothing of
// failures.
type observedLock struct {
	resourcelock.Interface
	election *Election
}

func (l observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	switch {
	case err == nil && record.HolderIdentity != l.Identity(): // what is ours is so only once it was renewed
		l.election.saw(record.HolderIdentity)
	case err != nil && !apierrors.IsNotFound(err):
		l.failed(ctx, "read", err)
	}
	return record, raw, err
}

func (l observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.wrote(ctx, "create", record, l.Interface.Create(ctx, record))
}

func (l observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.wrote(ctx, "update", record, l.Interface.Update(ctx, record))
}

// wrote notes who holds the Lease after a write. A conflict says that another one was faster, which the next read shows.
func (l observedLock) wrote(ctx context.Context, what string, record resourcelock.LeaderElectionRecord, err error) error {
	switch {
	case err == nil:
		l.election.saw(record.HolderIdentity)
	case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err):
		l.failed(ctx, what, err)
	}
	return err
}

// failed notes why the Lease cannot be used.
func (l observedLock) failed(ctx context.Context, what string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) { // stopping
		return
	}
	remedy := "see that the API server can be reached"
	if apierrors.IsForbidden(err) {
		remedy = "grant get, create and update of Leases there: exporter rbac prints the rights"
	}
	l.election.condition.Become(unknown, fmt.Sprintf("%s the Lease %s: %v", what, l.Describe(), err), remedy)
}
