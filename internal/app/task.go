package app

import (
	"context"
	"fmt"
	"sync"
)

// task is something that runs until it is stopped: the source, a pipeline, the journal, the admin server. Tasks are
// stopped one by one, in the order that app.stop states.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startTask runs a task in its own goroutine. Its context is independent of every other task's. When it ends with an error
// before it was told to stop, failed is called with that error, once.
func startTask(name string, run func(context.Context) error, failed func(error)) *task {
	ctx, cancel := context.WithCancel(context.Background())
	t := &task{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		if err := run(ctx); err != nil && ctx.Err() == nil {
			failed(fmt.Errorf("%s: %w", name, err))
		}
	}()
	return t
}

// stop tells the task to stop and waits until it has. A task that was never started, nil, has nothing to stop.
func (t *task) stop() {
	if t == nil {
		return
	}
	t.cancel()
	<-t.done
}

// failure keeps the first error of any task and tells that there is one.
type failure struct {
	once     sync.Once
	occurred chan struct{} // closed when there is one
	err      error
}

func newFailure() *failure { return &failure{occurred: make(chan struct{})} }

func (f *failure) reportError(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.occurred)
	})
}

// firstError returns the failure, if there is one yet.
func (f *failure) firstError() error {
	select {
	case <-f.occurred:
		return f.err
	default:
		return nil
	}
}
