package inspect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// measurement counts the changes of one scope over a window.
type measurement struct {
	window  time.Duration // how long it was watched; less than requested if err is set
	changes uint64        // objects added, updated or deleted, in the namespaces of the scope
	bytes   uint64        // of these objects' JSON without metadata.managedFields, as events carry it
	err     error         // why the watch failed or ended early
}

// measureAll watches the scopes from now on for d and counts the changes. Nothing is stored. The results are in the order of
// the scopes; each window begins when its watch is opened, so not all at the same moment. It returns when all windows or ctx
// have ended.
func measureAll(ctx context.Context, client *apiserver.Client, scopes []selection.Scope, d time.Duration) []measurement {
	measured := make([]measurement, len(scopes))
	slots := make(chan struct{}, maxParallel)
	var all sync.WaitGroup
	for i, s := range scopes {
		all.Go(func() {
			slots <- struct{}{}
			w, err := watchFromNow(ctx, client, s, d)
			<-slots
			if err != nil {
				measured[i].err = errors.New(apiserver.Reason(err))
				return
			}
			defer w.Stop()
			measured[i] = countChanges(ctx, w, s, d)
		})
	}
	all.Wait()
	return measured
}

// watchFromNow opens a watch of future changes. Its position is that of a LIST of one object, since a watch without a
// position begins with all existing objects.
func watchFromNow(ctx context.Context, client *apiserver.Client, s selection.Scope, d time.Duration) (*apiserver.Connection, error) {
	e, err := client.Endpoint(s)
	if err != nil {
		return nil, err
	}
	newest, err := e.Newest(ctx)
	if err != nil {
		return nil, err
	}
	const grace = 30 // the window ends before the watch does
	seconds := int64(d/time.Second) + grace
	return e.Watch(ctx, nil, metav1.ListOptions{ResourceVersion: newest, TimeoutSeconds: &seconds})
}

func countChanges(ctx context.Context, c *apiserver.Connection, s selection.Scope, d time.Duration) (m measurement) {
	began := time.Now()
	defer func() { m.window = time.Since(began) }()
	for {
		b, err := c.Next(ctx, time.Until(began.Add(d)))
		switch {
		case errors.Is(err, apiserver.ErrQuiet):
			return m
		case ctx.Err() != nil:
			m.err = ctx.Err()
			return m
		case err != nil:
			m.err = fmt.Errorf("the API server ended the watch: %w", err)
			return m
		}
		for _, e := range b.Events {
			m.addObject(e.Object, s)
		}
	}
}

func (m *measurement) addObject(o *deltas.Object, s selection.Scope) {
	if s.Filter == nil || s.Filter(o.Namespace) {
		m.changes++
		m.bytes += uint64(len(o.Raw))
	}
}
