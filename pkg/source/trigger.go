package source

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// trigger watches one of selection.Triggers and requests a discovery poll for every change. The content of the change is
// ignored: discovery is the only source of what is served.
type trigger struct {
	endpoint    *apiserver.Endpoint
	condition   *condition.Condition // OK unless new types are found later than usual
	requestPoll func()
	live        atomic.Bool // a watch is open, so changes request polls

	// Owned by run.
	position  string
	bookmarks bool // the API server sends bookmarks, so silence is a failure
}

const (
	// anyPosition starts with the content of the API server's cache, each object as one event.
	anyPosition = "0"
	// deniedRecheck is the interval, before jitter, for trying a right again that stayed denied after the API server's
	// start.
	deniedRecheck = 5 * time.Minute
)

func newTrigger(client *apiserver.Client, r event.Resource, all *condition.Set, requestPoll func()) (*trigger, error) {
	e, err := client.Endpoint(selection.Scope{ID: r.String(), Resource: r, MetadataOnly: true})
	return &trigger{endpoint: e, condition: all.Add(r.String(), condition.Problem{}), requestPoll: requestPoll, position: anyPosition}, err
}

// run watches until ctx ends. Failures are retried and do not affect the readiness of the Source: without the trigger, types
// are only found later.
func (t *trigger) run(ctx context.Context) {
	var p backoff
	for {
		opened := time.Now()
		err := t.watchDefinitions(ctx)
		if t.live.Swap(false) && time.Since(opened) >= steadyAfter {
			p.reset()
		}
		wait := p.nextWait(err)
		switch v := apiserver.Classify(err); {
		case errors.Is(err, errStale):
			t.condition.Update(condition.Problem{Code: condition.TypesSilent, Cause: err.Error()})
		case v == apiserver.Expired, v == apiserver.TooLarge:
			t.position = anyPosition
		case v == apiserver.Forbidden, v == apiserver.NotServed, v == apiserver.Refused:
			t.condition.Update(condition.Problem{Code: condition.TypesUnwatched, Cause: apiserver.Reason(err)})
			if p.failures > maxIdentifyAttempts {
				wait = deniedRecheck + rand.N(deniedRecheck)
			}
		}
		if sleep(ctx, wait) != nil {
			return
		}
	}
}

// watchDefinitions requests a poll for every change that one connection delivers, until it ends. A connection that should
// deliver bookmarks and is silent is closed, as for the watches of data: a dead connection would suppress the frequent
// polls.
func (t *trigger) watchDefinitions(ctx context.Context) error {
	c, err := t.endpoint.Watch(ctx, nil, metav1.ListOptions{ResourceVersion: t.position})
	if err != nil {
		return err
	}
	defer c.Stop()
	if t.condition.Status().Code != condition.TypesSilent { // otherwise it must deliver something first
		t.markLive()
	}
	if t.position == anyPosition {
		t.requestPoll() // for changes before the watch
	}
	for {
		b, err := c.Next(ctx, staleAfter)
		switch {
		case errors.Is(err, apiserver.ErrQuiet) && t.bookmarks:
			return errStale
		case errors.Is(err, apiserver.ErrQuiet):
			continue
		case err != nil:
			return err
		}
		t.markLive()
		t.bookmarks = t.bookmarks || b.Bookmarks
		if len(b.Events) > 0 {
			t.requestPoll()
		}
		// Initial objects arrive unordered, but none is newer than the cache was, so no later change is missed.
		if b.Position != "" {
			t.position = b.Position
		}
	}
}

// markLive records that the connection works.
func (t *trigger) markLive() {
	t.live.Store(true)
	t.condition.Clear()
}
