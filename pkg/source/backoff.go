package source

import (
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// backoff says how long to wait after failures in a row. It is used by one goroutine.
type backoff struct {
	failures      int
	needsOperator bool // they were such that only a person can help
}

const (
	minWait = 100 * time.Millisecond
	maxWait = 15 * time.Second
	// maxDeniedWait is the longest wait, before jitter, where only a person can help; asking more often would fill the API
	// server's audit log. The first waits are short, because an API server that has just started refuses what it will
	// allow a moment later.
	maxDeniedWait = 15 * time.Second
	minDeniedWait = time.Second
	// maxStartingWait is the longest wait, if the API server asks for no longer one, for what takes a moment.
	maxStartingWait = time.Second
	// maxRetryAfter is the longest wait that the API server is given where it asks for one. A page that a proxy shows during
	// maintenance may ask for hours, and nothing would be read long after its end.
	maxRetryAfter = time.Minute
)

func (p *backoff) reset() { p.failures = 0 }

// countFailure counts one more failure. A refusal that ends an outage is the first of its kind: an API server that has just
// started refuses for a moment, and history must not be lost over that.
func (p *backoff) countFailure(helpless bool) {
	if helpless != p.needsOperator {
		p.failures, p.needsOperator = 0, helpless
	}
	p.failures++
}

// nextWait is how long to wait after err: an exponential back-off with jitter, so that scopes do not come back in step, and
// not less than the API server asks for, up to maxRetryAfter.
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
