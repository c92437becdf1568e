package source

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Measurement is what one scope told over a window.
type Measurement struct {
	Window  time.Duration // how long it was watched; less than asked for if Err is set
	Changes uint64        // objects added, updated or deleted, in namespaces that the scope takes
	Bytes   uint64        // of these objects' JSON without metadata.managedFields, as events carry it
	Err     error         // why it was not watched, or not to the end
}

// Measure watches the scopes from now on for a time and counts what they tell. Nothing is kept. The results are in the
// order of the scopes; the windows begin as the watches are opened and so not at exactly the same moment. It returns when
// all have ended, early if ctx does.
func (c *Client) Measure(ctx context.Context, scopes []selection.Scope, d time.Duration) []Measurement {
	measured := make([]Measurement, len(scopes))
	slots := make(chan struct{}, concurrentLists)
	var all sync.WaitGroup
	for i, s := range scopes {
		all.Go(func() {
			slots <- struct{}{}
			w, err := c.watchFromNow(ctx, s, d)
			<-slots
			if err != nil {
				measured[i].Err = err
				return
			}
			defer w.stop()
			measured[i] = count(ctx, w, s, d)
		})
	}
	all.Wait()
	return measured
}

// watchFromNow opens a watch behind everything that has happened. The position is that of a LIST of one object, since a
// watch without a position begins with all objects there are.
func (c *Client) watchFromNow(ctx context.Context, s selection.Scope, d time.Duration) (*connection, error) {
	e, err := c.endpoint(s)
	if err != nil {
		return nil, err
	}
	newest, err := e.newest(ctx)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	seconds := int64(d/time.Second) + int64(watchGrace/time.Second)
	w, err := e.watch(ctx, nil, metav1.ListOptions{ResourceVersion: newest, TimeoutSeconds: &seconds})
	if err != nil {
		return nil, errors.New(reason(err))
	}
	return w, nil
}

func count(ctx context.Context, c *connection, s selection.Scope, d time.Duration) (m Measurement) {
	began := time.Now()
	defer func() { m.Window = time.Since(began) }()
	end := time.NewTimer(d)
	defer end.Stop()
	for {
		select {
		case <-ctx.Done():
			m.Err = ctx.Err()
			return m
		case <-end.C:
			return m
		case b, ok := <-c.batches:
			if !ok {
				m.Err = fmt.Errorf("the API server ended the watch: %w", c.err)
				return m
			}
			for _, e := range b.events {
				m.add(e.Object, s)
			}
		}
	}
}

func (m *Measurement) add(o *deltas.Object, s selection.Scope) {
	if s.Filter != nil && !s.Filter(o.Namespace) {
		return
	}
	m.Changes++
	m.Bytes += uint64(len(o.Raw))
}
