package main

import (
	"sync/atomic"
	"time"
)

// screen shows what arrives, one line an event. It is used by the subscriber's goroutine only, but for quiet.
type screen struct {
	out     *narrator
	history history
	loud    *atomic.Bool // show the load too
}

func newScreen(out *narrator) screen {
	return screen{out: out, history: make(history), loud: new(atomic.Bool)}
}

// show prints an event, unless it is one of the hundreds that the load makes.
func (s screen) show(e *event) {
	facts := s.history.tell(e)
	if e.Namespace == loadNamespace && !s.loud.Load() {
		return
	}
	s.out.arrival(time.Now(), e, facts)
}
