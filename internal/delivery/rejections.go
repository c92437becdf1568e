package delivery

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"
)

// A destination that rejects everything is the wrong one, or broken, and its history must not become dead letters. One that
// accepts some changes means the rejections of the others. So a rejection counts for as much as the destination has accepted
// lately.
const (
	// maxUnprovenRejections is how many rejections are believed of a destination that has accepted nothing lately.
	maxUnprovenRejections = 20

	// fastRejectionPeriod is how long after an acceptance every rejection is believed at once. Afterwards each lane waits for
	// one step of its back-off before.
	fastRejectionPeriod = time.Minute

	// rejectionMemory is how long the rejections of a destination that gives no answer are remembered.
	rejectionMemory = 24 * time.Hour

	// maxStoredDestinations bounds the destinations whose answers are stored with the cursor.
	maxStoredDestinations = 1000
)

// rejectionVerdict is what becomes of a rejected change.
type rejectionVerdict int

const (
	rejectionBelieved  rejectionVerdict = iota // it becomes a dead letter
	rejectionDelayed                           // it becomes a dead letter if it is rejected again after a back-off of its lane
	rejectionSuspected                         // the destination accepts nothing: the change is tried until it is accepted
)

// rejectionPolicy decides what a rejection is about: the change, or the destination. It knows no clock of its own. Safe for
// concurrent use.
type rejectionPolicy struct {
	suspectAfter time.Duration // negative: no destination is suspected

	mu           sync.Mutex
	destinations map[string]destinationAnswers // by name
}

// destinationAnswers is what a destination, a topic with all its partitions, a stream or a URL, has answered. It is stored
// with the cursor, in seconds of Unix time.
type destinationAnswers struct {
	Accepted   int64 `json:"accepted,omitempty"` // the last acceptance; 0: none is known
	Rejected   int64 `json:"rejected,omitempty"` // the last rejection
	Rejections int   `json:"rejections,omitempty"`
}

func newRejectionPolicy(suspectAfter time.Duration) *rejectionPolicy {
	return &rejectionPolicy{suspectAfter: suspectAfter, destinations: map[string]destinationAnswers{}}
}

// recordAcceptance records that a destination accepted a change.
func (p *rejectionPolicy) recordAcceptance(destination string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.destinations[destination]
	if d.Accepted != now.Unix() || d.Rejections > 0 {
		d.Accepted, d.Rejections = now.Unix(), 0
		p.destinations[destination] = d
	}
}

// judgeRejection decides about a rejection; delayed: the change was rejected before and has waited since. The caller does
// not ask again about a change whose rejection is believed, so that it counts once.
func (p *rejectionPolicy) judgeRejection(destination string, delayed bool, now time.Time) rejectionVerdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.destinations[destination]
	d.Rejected = now.Unix()
	verdict := p.verdictOf(d, now)
	if verdict == rejectionBelieved || verdict == rejectionDelayed && delayed {
		verdict = rejectionBelieved
		d.Rejections++
	}
	p.destinations[destination] = d
	return verdict
}

func (p *rejectionPolicy) verdictOf(d destinationAnswers, now time.Time) rejectionVerdict {
	sinceAccepted := now.Sub(time.Unix(d.Accepted, 0))
	switch {
	case p.suspectAfter < 0, d.Rejections < maxUnprovenRejections, sinceAccepted < min(fastRejectionPeriod, p.suspectAfter):
		return rejectionBelieved
	case sinceAccepted < p.suspectAfter:
		return rejectionDelayed
	}
	return rejectionSuspected
}

// removeStale forgets the destinations that have given no answer for so long that they count as not known.
func (p *rejectionPolicy) removeStale(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.destinations, func(_ string, d destinationAnswers) bool {
		memory := p.suspectAfter
		if d.Rejections > 0 {
			memory = rejectionMemory
		}
		return now.Sub(time.Unix(max(d.Accepted, d.Rejected), 0)) >= memory
	})
}

// encode returns the answers of the destinations that have rejected something lately, so that a restart neither forgets
// that a destination is well, nor that it has rejected everything. nil if there is none.
func (p *rejectionPolicy) encode(now time.Time) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name, d := range p.destinations {
		if d.Rejections > 0 || now.Sub(time.Unix(d.Rejected, 0)) < p.suspectAfter {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Compare(p.destinations[b].Rejected, p.destinations[a].Rejected)
	})
	stored := map[string]destinationAnswers{}
	for _, name := range names[:min(len(names), maxStoredDestinations)] {
		stored[name] = p.destinations[name]
	}
	encoded, _ := json.Marshal(stored) // names and numbers: no error
	return encoded
}

// decode is the inverse of encode. What cannot be read is not known.
func (p *rejectionPolicy) decode(encoded []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stored := map[string]destinationAnswers{}
	if json.Unmarshal(encoded, &stored) == nil {
		p.destinations = stored
	}
}
