package main

import (
	"context"
	"fmt"
	"sync"
)

// part is something that runs until it is stopped: the source, a pipeline, the journal, the admin server. Parts are
// stopped one by one, in the order that exporter.stop states.
type part struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// start runs a part in its own goroutine. Its context is independent of every other part's. When it ends with an error
// before it was told to stop, failed is called with that error, once.
func start(name string, run func(context.Context) error, failed func(error)) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if err := run(ctx); err != nil && ctx.Err() == nil {
			failed(fmt.Errorf("%s: %w", name, err))
		}
	}()
	return p
}

// stop tells the part to stop and waits until it has. A part that was never started, nil, has nothing to stop.
func (p *part) stop() {
	if p == nil {
		return
	}
	p.cancel()
	<-p.done
}

// failure keeps the first error of any part and tells that there is one.
type failure struct {
	once sync.Once
	c    chan struct{} // closed when there is one
	err  error
}

func newFailure() *failure { return &failure{c: make(chan struct{})} }

func (f *failure) report(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.c)
	})
}

// get returns the failure, if there is one yet.
func (f *failure) get() error {
	select {
	case <-f.c:
		return f.err
	default:
		return nil
	}
}
