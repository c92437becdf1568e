package journal

import "time"

// retention keeps changes for some time after every sink has settled them, for a sink whose destination turns out to have
// lost what it acknowledged. It is used by the committer alone.
type retention struct {
	keep    time.Duration
	samples []settledSample // ascending, at most about maxSettledSamples
}

// settledSample says that everything up to low was settled by then.
type settledSample struct {
	at  time.Time
	low uint64
}

// maxSettledSamples bounds the marks that are remembered, and so how much longer than needed a change is kept.
const maxSettledSamples = 32

// trimLimit returns up to where everything has been settled for long enough; low is up to where it is settled now. What was
// settled before the process started counts from its first commit.
func (r *retention) trimLimit(low uint64, now time.Time) uint64 {
	if r.keep <= 0 {
		return low
	}
	if n := len(r.samples); n == 0 || now.Sub(r.samples[n-1].at) >= r.keep/maxSettledSamples {
		r.samples = append(r.samples, settledSample{now, low})
	}
	for len(r.samples) > 1 && now.Sub(r.samples[1].at) >= r.keep {
		r.samples = r.samples[1:]
	}
	if now.Sub(r.samples[0].at) < r.keep {
		return 0
	}
	return min(r.samples[0].low, low) // a sink that went back needs more
}
