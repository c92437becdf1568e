package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// failureKind is the reaction that an error of a sink asks for.
type failureKind int

const (
	failureNone        failureKind = iota
	failureRejected                // the change becomes a dead letter
	failureUnavailable             // the gate closes
	failureLost                    // the pipeline ends; another one starts from an earlier position
	failureDeposed                 // the pipeline ends; another process delivers
	failureUnknown                 // the lane retries with back-off
)

// classifyError returns the kind of an error. An error that is both unavailable and rejected counts as unavailable, because
// a change must not be dead-lettered while that is uncertain.
func classifyError(err error) failureKind {
	switch {
	case err == nil:
		return failureNone
	case contains[*sinks.DeposedError](err):
		return failureDeposed
	case contains[*sinks.LostError](err):
		return failureLost
	case contains[*sinks.UnavailableError](err):
		return failureUnavailable
	case contains[*sinks.RejectedError](err):
		return failureRejected
	}
	return failureUnknown
}

func contains[E error](err error) bool {
	_, found := errors.AsType[E](err)
	return found
}

// isTooLarge reports whether err rejects a change for its size.
func isTooLarge(err error) bool {
	rejected, found := errors.AsType[*sinks.RejectedError](err)
	return found && rejected.TooLarge
}

// reportToGate reports what a Publish shows about the destination as a whole. An unknown error shows nothing: if the Publish
// was a probe, its lane backs off and another lane probes.
func (w *workerPool) reportToGate(ctx context.Context, pass ratelimit.Pass, err error) {
	switch kind := classifyError(err); {
	case kind == failureNone || kind == failureRejected:
		pass.Succeeded()
	case kind == failureUnavailable && ctx.Err() == nil:
		unavailable, _ := errors.AsType[*sinks.UnavailableError](err)
		pass.Failed(unavailable.Reason, unavailable.After)
	default:
		pass.Abandoned()
	}
}

// laneUnavailableError is an UnavailableError that only one lane gets: it fails that lane instead of closing the gate.
type laneUnavailableError struct{ *sinks.UnavailableError }

// Unwrap hides the error that would close the gate.
func (e *laneUnavailableError) Unwrap() error { return nil }

// suspectedProbe is the wait between two lanes that look for what a suspected destination accepts.
const suspectedProbe = 500 * time.Millisecond

// suspectedError returns the error of a lane whose destination accepts nothing, while its changes are not dead-lettered. If
// no other lane can find what it accepts, the sink is unavailable as a whole.
func suspectedError(hasOthers bool, rejection error) error {
	cause := "every change is rejected and none accepted; last rejection: " + rejection.Error()
	if hasOthers {
		return condition.Problem{Code: condition.SinkRejectsAll, Cause: cause}.Wrap(nil)
	}
	return &sinks.UnavailableError{Code: condition.SinkRejectsAll, Reason: cause, After: suspectedProbe}
}
