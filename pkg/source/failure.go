package source

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// verdict is what a failure means for the history of a scope.
type verdict int

const (
	// interrupted: try again from the same place. Everything that is not positively something else.
	interrupted verdict = iota
	// expired: the API server no longer has the history from here on (410).
	expired
	// tooLarge: this API server has not reached the position. It lags behind, or etcd was restored from a backup.
	tooLarge
	// refused: the API server does not know this kind of request; another kind may do.
	refused
	// forbidden: this program may not do that.
	forbidden
	// notServed: nothing serves this resource, or no more.
	notServed
	// starting: the API server is filling its cache of this resource, as it does when it starts and when a definition was
	// just established.
	starting
)

// initializing is what the API server's cache says of itself until it is filled, with status 429; before Kubernetes 1.29
// also with 500.
const initializing = "storage is (re)initializing"

func classifyError(err error) verdict {
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return expired
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return tooLarge
	case apierrors.IsForbidden(err):
		return forbidden
	case apierrors.IsNotFound(err):
		return notServed
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		switch status.Status().Code {
		case http.StatusTooManyRequests, http.StatusInternalServerError:
			message := status.Status().Message
			if strings.Contains(message, initializing) && !strings.Contains(message, initializing+": ") {
				return starting
			}
		case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
			http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
			return refused
		}
	}
	return interrupted
}

// state is what a failure makes of a scope.
func (v verdict) state() State {
	switch v {
	case forbidden:
		return Forbidden
	case notServed:
		return Waiting
	case starting:
		return Syncing
	}
	return Unreachable
}

// reason says in few words what went wrong: without the URL, which the scope says better.
func reason(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}

// backoff says how long to wait after failures in a row. It is used by one goroutine.
type backoff struct {
	failures int
	helpless bool // they were such that only a person can help
}

const (
	firstWait   = 100 * time.Millisecond
	longestWait = 15 * time.Second
	// rightsWait is the longest wait, before jitter, where only a person can help; asking more often would fill the API
	// server's audit log. The first waits are short, because an API server that has just started refuses what it will
	// allow a moment later.
	rightsWait      = 15 * time.Second
	firstRightsWait = time.Second
	// startingWait is the longest wait, if the API server asks for no longer one, for what takes a moment.
	startingWait = time.Second
)

func (p *backoff) reset() { p.failures = 0 }

// count counts one more failure. A refusal that ends an outage is the first of its kind: an API server that has just
// started refuses for a moment, and history must not be lost over that.
func (p *backoff) count(helpless bool) {
	if helpless != p.helpless {
		p.failures, p.helpless = 0, helpless
	}
	p.failures++
}

// wait is how long to wait after err: an exponential back-off with jitter, so that scopes do not come back in step, and
// never less than the API server asks for.
func (p *backoff) wait(err error) time.Duration {
	longest := longestWait
	v := classifyError(err)
	p.count(v == forbidden || v == notServed)
	switch v {
	case forbidden, notServed:
		d := p.grown(firstRightsWait, rightsWait)
		return d + rand.N(d)
	case starting:
		longest = startingWait
	}
	d := p.grown(firstWait, longest)
	d = d/2 + rand.N(d/2)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		d = max(d, time.Duration(seconds)*time.Second)
	}
	return d
}

// grown doubles first with each failure, up to longest.
func (p *backoff) grown(first, longest time.Duration) time.Duration {
	if p.failures > 16 {
		return longest
	}
	return min(longest, first<<(p.failures-1))
}
