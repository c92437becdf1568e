package journal

import "time"

// retention keeps changes for some time after every sink has settled them, for a sink whose destination turns out to have
// lost what it acknowledged. It is used by the committer alone.
type retention struct {
	keep  time.Duration
	noted []settledMark // ascending, at most about retentionMarks
}

// settledMark says that everything up to low was settled by then.
type settledMark struct {
	at  time.Time
	low uint64
}

// retentionMarks bounds the marks that are remembered, and so how much longer than needed a change is kept.
const retentionMarks = 32

// passed returns up to where everything has been settled for long enough; low is up to where it is settled now. What was
// settled before the process started counts from its first commit.
func (r *retention) passed(low uint64, now time.Time) uint64 {
	if r.keep <= 0 {
		return low
	}
	if n := len(r.noted); n == 0 || now.Sub(r.noted[n-1].at) >= r.keep/retentionMarks {
		r.noted = append(r.noted, settledMark{now, low})
	}
	for len(r.noted) > 1 && now.Sub(r.noted[1].at) >= r.keep {
		r.noted = r.noted[1:]
	}
	if now.Sub(r.noted[0].at) < r.keep {
		return 0
	}
	return min(r.noted[0].low, low) // a sink that went back needs more
}
