package source

import (
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// backoff computes the waits after consecutive failures. The zero value is ready. It is used by one goroutine.
type backoff struct {
	failures      int
	needsOperator bool // the failures are such that only an operator can resolve them
}

const (
	minWait = 100 * time.Millisecond
	maxWait = 15 * time.Second
	// minDeniedWait and maxDeniedWait bound the wait, before jitter, after failures that only an operator can resolve. More
	// frequent retries would fill the API server's audit log. The first waits are short because an API server that has just
	// started denies what it allows a moment later.
	minDeniedWait = time.Second
	maxDeniedWait = 15 * time.Second
	// maxStartingWait bounds the wait for an API server that is starting, unless it asks for a longer one.
	maxStartingWait = time.Second
	// maxRetryAfter bounds a Retry-After. The maintenance page of a proxy may ask for hours, and nothing would be read until
	// long after the maintenance.
	maxRetryAfter = time.Minute
)

func (p *backoff) reset() { p.failures = 0 }

// countFailure counts a failure. A refusal at the end of an outage is the first of its kind, so the waits start over: an API
// server that has just started refuses for a moment, and history must not be lost over a long wait.
func (p *backoff) countFailure(needsOperator bool) {
	if needsOperator != p.needsOperator {
		p.failures, p.needsOperator = 0, needsOperator
	}
	p.failures++
}

// nextWait returns the wait after err: an exponential back-off with jitter, so that scopes do not retry in step, and not
// less than the Retry-After of the API server, up to maxRetryAfter.
func (p *backoff) nextWait(err error) time.Duration {
	longest := maxWait
	v := apiserver.Classify(err)
	p.countFailure(v == apiserver.Forbidden || v == apiserver.NotServed)
	switch v {
	case apiserver.Forbidden, apiserver.NotServed:
		d := p.exponentialWait(minDeniedWait, maxDeniedWait)
		return d + rand.N(d)
	case apiserver.Starting:
		longest = maxStartingWait
	default: // an ordinary failure
	}
	d := p.exponentialWait(minWait, longest)
	d = d/2 + rand.N(d/2)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		d = max(d, min(maxRetryAfter, time.Duration(seconds)*time.Second))
	}
	return d
}

// exponentialWait doubles first with each failure, up to longest.
func (p *backoff) exponentialWait(first, longest time.Duration) time.Duration {
	if p.failures > 16 {
		return longest
	}
	return min(longest, first<<(p.failures-1))
}
