package app

import (
	"context"
	"fmt"
	"sync"
)

// task is a goroutine that runs until it is stopped: the source, a pipeline, the journal, the admin server. Tasks are
// stopped one by one, in the order of composition.stopTasks and app.stopProcessTasks.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startTask runs a task in its own goroutine, with a context of its own. If run returns an error before stop was called,
// failed is called with that error, once.
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

// stop ends the context of the task and waits until it has returned. A nil task was never started, and stop does nothing.
func (t *task) stop() {
	if t == nil {
		return
	}
	t.cancel()
	<-t.done
}

// failure records the first error of any task. It is safe for concurrent use.
type failure struct {
	once     sync.Once
	occurred chan struct{} // closed after err is set
	err      error
}

func newFailure() *failure { return &failure{occurred: make(chan struct{})} }

func (f *failure) reportError(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.occurred)
	})
}

// firstError returns the recorded error; nil if there is none yet.
func (f *failure) firstError() error {
	select {
	case <-f.occurred:
		return f.err
	default:
		return nil
	}
}
