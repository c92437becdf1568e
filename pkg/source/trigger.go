package source

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// trigger watches one of selection.Triggers and rings for every change of it. What changed is not looked at: discovery says
// it.
type trigger struct {
	endpoint    *apiserver.Endpoint
	condition   *condition.Condition // OK unless a person should know that new types are found later
	requestPoll func()
	live        atomic.Bool // changes ring

	// Owned by run.
	position  string
	bookmarks bool // the API server sends them, so silence means something
}

// The states of a trigger.
var (
	triggerLive        = condition.State{Name: "announced", Message: "changes of the definitions of types are announced now"}
	triggerUnavailable = condition.State{Name: "unannounced", Severity: condition.Degraded, Message: "changes of the definitions of types are not announced, new types are found by asking"}
	triggerSilent      = condition.State{Name: "silent", Severity: condition.Degraded, Level: slog.LevelWarn, Message: "the watch of the definitions of types fell silent, opening it again"}
)

const (
	// anyPosition begins with whatever the API server's cache holds; each object there rings once.
	anyPosition = "0"
	// deniedRecheck is how often, before jitter, a right is tried again that did not come with the API server's start.
	deniedRecheck = 5 * time.Minute
)

func newTrigger(client *apiserver.Client, r event.Resource, all *condition.Set, ring func()) (*trigger, error) {
	e, err := client.Endpoint(selection.Scope{ID: r.String(), Resource: r, MetadataOnly: true})
	return &trigger{endpoint: e, condition: all.Add(r.String(), triggerLive), requestPoll: ring, position: anyPosition}, err
}

// run watches until ctx ends. Without it types are found later; so whatever fails here is tried again and is no trouble
// of the Source.
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
			t.condition.Update(triggerSilent, err.Error(), "")
		case v == apiserver.Expired, v == apiserver.TooLarge:
			t.position = anyPosition
		case v == apiserver.Forbidden, v == apiserver.NotServed, v == apiserver.Refused:
			t.condition.Update(triggerUnavailable, apiserver.Reason(err), "")
			if p.failures > maxIdentifyAttempts {
				wait = deniedRecheck + rand.N(deniedRecheck)
			}
		}
		if sleep(ctx, wait) != nil {
			return
		}
	}
}

// watchDefinitions rings for every change that one connection brings, until it ends, or falls silent though bookmarks should come, as
// for the watches of data: then a new type would be found no sooner than without the trigger.
func (t *trigger) watchDefinitions(ctx context.Context) error {
	c, err := t.endpoint.Watch(ctx, nil, metav1.ListOptions{ResourceVersion: t.position})
	if err != nil {
		return err
	}
	defer c.Stop()
	if t.condition.Status().State.Name != triggerSilent.Name { // else it has to prove itself
		t.markLive()
	}
	if t.position == anyPosition {
		t.requestPoll() // for what happened before
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
		// Initial objects come in no order, but none is newer than what the cache held: nothing after is missed.
		if b.Position != "" {
			t.position = b.Position
		}
	}
}

// markLive notes that changes ring.
func (t *trigger) markLive() {
	t.live.Store(true)
	t.condition.Update(triggerLive, "", "")
}
