package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// reachedQueryTimeout bounds the question of reached. The API server waits three seconds for its cache.
const reachedQueryTimeout = 10 * time.Second

// checkReached returns nil if the API server's history has come as far as position. If it has not, because etcd was restored
// from a backup, the error's verdict is tooLarge.
//
// It has to be asked, since a watch from a position in the future is accepted and stays silent, bookmarks included, until
// the cluster has made as many writes again: everything up to there would be missed and nothing would show it.
//
// The question is a WatchList, not a LIST: "send the object of this name, not older than position, and say when you are
// done". No object has that name, so it costs the API server a look at its cache, on every start and every reconnect. A
// cache that is behind answers after three seconds that the position is too large; whether that is a lag or a restored
// etcd is then decided by what etcd itself says, in a LIST of one object. API servers that know no WatchList (before
// 1.32, most aggregated ones) get that LIST at once. Resources without a watch cache, such as events, answer with what
// etcd has, which may be older than asked for.
//
// A question that ends without an answer is asked again, like everything that an outage interrupts. If that happens
// again and again the API server cannot answer, and is asked in the other way.
func (f *follower) checkReached(ctx context.Context, s *apiserver.Slot, position string) error {
	e := f.endpoint.Load()
	ctx, cancel := context.WithTimeout(ctx, reachedQueryTimeout+apiserver.HeadersTimeout)
	defer cancel()
	err := queryReached(ctx, e, s, position)
	unanswered := errors.Is(err, errUnanswered)
	switch v := apiserver.Classify(err); {
	case err == nil:
	case v == apiserver.Refused, v == apiserver.TooLarge, unanswered && f.unansweredQueries >= maxUnmarkedLists:
		f.health.updateCounters(func(s *Status) { s.Lists++ })
		newest, err := e.Newest(ctx)
		if err != nil {
			return err
		}
		return checkNotBefore(newest, position)
	case unanswered:
		f.unansweredQueries++
		return err
	default:
		return err
	}
	f.unansweredQueries = 0
	return nil
}

var errUnanswered = errors.New("the API server ended a watch before it was complete")

func queryReached(ctx context.Context, e *apiserver.Endpoint, s *apiserver.Slot, position string) error {
	yes, seconds := true, int64(reachedQueryTimeout/time.Second)
	c, err := e.Watch(ctx, s, metav1.ListOptions{
		ResourceVersion: position, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		SendInitialEvents: &yes, TimeoutSeconds: &seconds, FieldSelector: noObjectSelector(e.Scope),
	})
	if err != nil {
		return err
	}
	defer c.Stop()
	for limit := time.Now().Add(reachedQueryTimeout); ; {
		b, err := c.Next(ctx, time.Until(limit))
		switch {
		case errors.Is(err, apiserver.ErrQuiet), errors.Is(err, decode.ErrEnd):
			return errUnanswered
		case err != nil:
			return err
		case b.Listed:
			return checkNotBefore(b.Position, position)
		}
	}
}

// noObjectSelector selects as little as this program is allowed to ask for: an object that does not exist, or, where the scope is
// bound to a name, and its rights perhaps too, that one.
func noObjectSelector(s selection.Scope) string {
	if s.ObjectName() != "" {
		return s.FieldSelector
	}
	return "metadata.name=kubecdc-asks-for-nobody"
}

// checkNotBefore returns nil unless newest is older than position. Versions that cannot be compared are taken for reached:
// nothing positive says that history is lost.
func checkNotBefore(newest, position string) error {
	if order, err := resourceversion.CompareResourceVersion(position, newest); err != nil || order <= 0 {
		return nil //nolint:nilerr // see above
	}
	ahead := apierrors.NewTimeoutError(fmt.Sprintf(
		"the stored position %s is ahead of the API server, which is at %s: etcd was restored from a backup", position, newest), 0)
	ahead.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return ahead
}
