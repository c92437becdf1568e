package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// lister reads all objects of a scope and emits the differences from the known objects: on the first start, after history or
// the journal was lost, and after the rules were edited. It belongs to the goroutine of follower.run.
type lister struct {
	out    *emitter
	api    *scopeClient
	health *health
	reader reader
	batch  apiserver.Batch // visited and not emitted yet
	listed func(began time.Time, objects int)
	read   int            // objects of the current attempt
	sample *deltas.Object // one of them
}

func newLister(f *follower, slots chan struct{}) *lister {
	listed := func(began time.Time, objects int) {
		if report := f.runner.env.cfg.Listed; report != nil {
			report(f.scope.ID, began, objects)
		}
	}
	return &lister{out: f.out, api: f.api, health: f.health, listed: listed, reader: reader{
		api: f.api, slot: f.api.newSlot(slots), most: maxPage, recordHeld: f.health.recordProblem, signaled: f.api.reconnect,
		recordFailure: f.health.recordFailure, handleFailure: f.api.handleFailure,
		recordSuccess: func() {
			f.api.backoff.reset()
			f.health.recordProblem(condition.Problem{Code: condition.ResourceSyncing, Cause: "reading all objects"})
		},
	}}
}

// listUntilComplete lists until a list is complete. Objects emitted by an interrupted list are known afterwards, so the next
// list does not emit them again. Errors are those of ctx, errVanished and *appendError.
func (l *lister) listUntilComplete(ctx context.Context) error {
	began := time.Now()
	l.reader.recheck = l.api.recheck
	position, aheadUpTo, err := l.reader.read(ctx, "", l)
	l.reader.slot.Release()
	if err == nil {
		err = l.finish(ctx, position, aheadUpTo)
	}
	if err == nil {
		l.health.synced.Store(true)
		l.listed(began, l.read)
		l.health.listing.Update(l.problemOfList(ctx))
	}
	return err
}

// problemOfList returns what is wrong with what the server lists. Servers beside kube-apiserver may list parts of objects,
// or objects of several clusters. An object is compared with the one that a watch from the beginning has.
func (l *lister) problemOfList(ctx context.Context) condition.Problem {
	sample := l.sample
	l.sample = nil
	if names := l.out.tracker.Load().Namesakes(); len(names) > 0 {
		return condition.Problem{Code: condition.ListAmbiguous, Cause: "there are several objects of the names " + strings.Join(names, ", ")}
	}
	if sample == nil || l.out.scope.MetadataOnly || selection.IsBuiltin(l.out.scope.Resource) {
		return condition.Problem{}
	}
	var listed, got map[string]json.RawMessage
	if json.Unmarshal(sample.Raw, &listed) != nil || json.Unmarshal(l.watched(ctx, sample), &got) != nil {
		return condition.Problem{}
	}
	maps.DeleteFunc(got, func(member string, _ json.RawMessage) bool { _, has := listed[member]; return has })
	if len(got) == 0 {
		return condition.Problem{}
	}
	members := strings.Join(slices.Sorted(maps.Keys(got)), ", ")
	return condition.Problem{Code: condition.ListIncomplete, Cause: "an object has more than its list: " + members}
}

// anyPosition starts with the content of the API server's cache, each object as one event.
const anyPosition = "0"

// watched returns what a watch has of a listed object in that version; nil if it has not sent it within a second.
func (l *lister) watched(ctx context.Context, listed *deltas.Object) []byte {
	ctx, cancel := context.WithTimeout(ctx, steadyAfter)
	defer cancel()
	c, err := l.api.endpoint.Load().Watch(ctx, nil, metav1.ListOptions{
		ResourceVersion: anyPosition, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, listed.Name).String(),
	})
	if err != nil {
		return nil
	}
	defer c.Stop()
	for {
		b, err := c.Next(ctx, steadyAfter)
		if err != nil {
			return nil
		}
		for _, e := range b.Events {
			if e.Object.UID == listed.UID && e.Object.ResourceVersion == listed.ResourceVersion {
				return e.Object.Raw
			}
		}
	}
}

// finish emits what follows a list that is complete.
func (l *lister) finish(ctx context.Context, position, aheadUpTo string) error {
	end, err := l.api.awaitTurn(ctx)
	if err != nil {
		return err
	}
	defer end()
	return l.out.finishList(ctx, position, aheadUpTo)
}

// begin implements [visitor].
func (l *lister) begin(position string) error {
	l.batch, l.read, l.sample = apiserver.Batch{}, 0, nil
	l.out.beginList(position)
	l.health.recordProblem(condition.Problem{Code: condition.ResourceSyncing, Cause: "reading all objects"})
	return nil
}

// visit implements [visitor].
func (l *lister) visit(ctx context.Context, o *deltas.Object) error {
	l.read, l.sample = l.read+1, o
	if l.batch.Add(deltas.Event{Type: watch.Added, Object: o}, len(o.Raw)); l.batch.Full() {
		return l.emitBatch(ctx)
	}
	return nil
}

// endPage implements [visitor].
func (l *lister) endPage(ctx context.Context, _ int, _ bool) error {
	return l.emitBatch(ctx)
}

// emitBatch emits what was visited. A *HeldError ends the request, which is repeated when something may be emitted again: a
// list that waited would keep others from reading.
func (l *lister) emitBatch(ctx context.Context) error {
	events := l.batch.Events
	l.batch = apiserver.Batch{}
	end, err := l.api.beginTurn()
	if err != nil {
		return err
	}
	defer end()
	return l.out.emitEvents(ctx, events, "")
}

// awaitWatchable waits until the API server can be watched from its own current position. It is called if the previous list
// could not be watched from: an API server without history at the position of its own list is broken, and listing again
// would only emit the same gap again.
func (l *lister) awaitWatchable(ctx context.Context) error {
	for {
		err := l.probeWatch(ctx)
		if err == nil {
			return nil
		}
		if err := l.api.handleFailure(ctx, err); err != nil {
			return err
		}
	}
}

// probeWatch watches from the current position until the watch has delivered something or lasted for steadyAfter.
func (l *lister) probeWatch(ctx context.Context) error {
	if _, err := l.api.admit(ctx); err != nil {
		return err
	}
	if err := l.api.confirmCluster(ctx); err != nil {
		return err
	}
	position, err := l.api.newestPosition(ctx)
	if err != nil {
		return err
	}
	if err := l.watchSteadilyFrom(ctx, position); err != nil {
		return fmt.Errorf("the API server cannot be watched from the position %s of its own list: %w", position, err)
	}
	return nil
}

func (l *lister) watchSteadilyFrom(ctx context.Context, position string) error {
	c, err := l.api.endpoint.Load().Watch(ctx, l.api.newSlot(nil), metav1.ListOptions{ResourceVersion: position})
	if err != nil {
		return err
	}
	defer c.Stop()
	if _, err = c.Next(ctx, steadyAfter); errors.Is(err, apiserver.ErrQuiet) {
		return nil
	}
	return err
}
