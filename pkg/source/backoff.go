package source

import (
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

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
	// longestAsked is the longest wait that the API server is given where it asks for one. A page that a proxy shows during
	// maintenance may ask for hours, and nothing would be read long after its end.
	longestAsked = time.Minute
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
// not less than the API server asks for, up to longestAsked.
func (p *backoff) wait(err error) time.Duration {
	longest := longestWait
	v := apiserver.Classify(err)
	p.count(v == apiserver.Forbidden || v == apiserver.NotServed)
	switch v {
	case apiserver.Forbidden, apiserver.NotServed:
		d := p.grown(firstRightsWait, rightsWait)
		return d + rand.N(d)
	case apiserver.Starting:
		longest = startingWait
	}
	d := p.grown(firstWait, longest)
	d = d/2 + rand.N(d/2)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		d = max(d, min(longestAsked, time.Duration(seconds)*time.Second))
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
