package app

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
)

// signalEchoWindow is how long after the first signal further ones are taken for copies of it: a terminal, timeout(1) and many
// wrappers signal a process and its group.
const signalEchoWindow = time.Second

// contextUntilSignal returns a context that ends with the first SIGTERM or SIGINT. A second one, later than an echo of the first,
// ends the process.
func contextUntilSignal(parent context.Context, log *slog.Logger, echo time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	released := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					log.Info("stopping; the same signal again stops hard", "signal", s.String())
					cancel()
				case time.Since(first) > echo:
					log.Warn("stopped hard; what was not delivered is in the journal", "signal", s.String())
					os.Exit(int(exit.Runtime))
				}
			case <-released:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(released)
		cancel()
	}
}
