package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// reachedQueryTimeout bounds one query. The API server itself waits three seconds for its cache.
const reachedQueryTimeout = 10 * time.Second

// maxUnansweredQueries is the number of consecutive queries without an answer before a LIST replaces them.
const maxUnansweredQueries = 3

// positionCheck checks before each watch that the API server's history has reached the position to watch from. A restored
// etcd is behind it, and the API server accepts a watch from a future position but stays silent, bookmarks included, until
// the cluster has made as many writes again. Everything up to there would be missed unnoticed.
//
// The query is a WatchList (KEP-3157) for an object that does not exist, not older than the position. It costs the API
// server a look at its cache. A cache that is behind answers after three seconds that the position is too large. A LIST of
// one object, which etcd answers, then distinguishes a lagging cache from a restored etcd. API servers without WatchList
// (before 1.32, and most aggregated ones) get that LIST at once. Resources without a watch cache, such as events, answer
// from etcd, possibly with an older state than asked for.
type positionCheck struct {
	api               *scopeClient
	unansweredQueries int // consecutive queries that ended without an answer
}

// checkReached returns nil if the API server has reached the position. If etcd was restored from a backup, the error is
// classified as apiserver.TooLarge. A query without an answer is an error to retry; after maxUnansweredQueries the API
// server is taken to be unable to answer it.
func (c *positionCheck) checkReached(ctx context.Context, s *apiserver.Slot, position string) error {
	e := c.api.endpoint.Load()
	ctx, cancel := context.WithTimeout(ctx, reachedQueryTimeout+apiserver.HeadersTimeout)
	defer cancel()
	err := queryReached(ctx, e, s, position)
	unanswered := errors.Is(err, errUnanswered)
	switch v := apiserver.Classify(err); {
	case err == nil:
	case v == apiserver.Refused, v == apiserver.TooLarge, unanswered && c.unansweredQueries >= maxUnansweredQueries:
		newest, err := c.api.newestPosition(ctx)
		if err != nil {
			return err
		}
		return checkNotBefore(newest, position)
	case unanswered:
		c.unansweredQueries++
		return err
	default:
		return err
	}
	c.unansweredQueries = 0
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

// noObjectSelector returns a field selector that matches as little as the program's rights allow: the name of no object, or,
// if the scope selects one object by name, that name, because RBAC may allow nothing else.
func noObjectSelector(s selection.Scope) string {
	if s.ObjectName() != "" {
		return s.FieldSelector
	}
	return "metadata.name=kubecdc-no-such-object"
}

// checkNotBefore returns nil unless newest is older than position. Versions that cannot be compared count as reached: they
// are no evidence of a loss.
func checkNotBefore(newest, position string) error {
	if order, _ := resourceversion.Compare(position, newest); order <= 0 {
		return nil
	}
	ahead := apierrors.NewTimeoutError(fmt.Sprintf(
		"the stored position %s is ahead of the API server, which is at %s: etcd was restored from a backup", position, newest), 0)
	ahead.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return ahead
}
