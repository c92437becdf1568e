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
// accepts some changes means the rejections of the others. So rejections are believed up to a number since the last
// acceptance; then changes behind the rejected ones are tried, until one is accepted.
const (
	// maxRejections is how many rejections in a row are believed of a destination that has accepted a change lately, or
	// maxUsual times as many as are usual between two of its acceptances; maxUnprovenRejections of one that has not.
	maxRejections         = 100
	maxUsual              = 10
	maxUnprovenRejections = 20

	// rejectionMemory is how long the rejections of a destination that gives no answer are remembered.
	rejectionMemory = 24 * time.Hour

	// maxStoredDestinations bounds the destinations whose answers are stored with the cursor.
	maxStoredDestinations = 1000
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
	Accepted   int64 `json:"accepted,omitempty"`   // the last acceptance; 0: none is known
	Rejected   int64 `json:"rejected,omitempty"`   // the last rejection
	Rejections int   `json:"rejections,omitempty"` // since the last acceptance
	Usual      int   `json:"usual,omitempty"`      // about the mean of Rejections at an acceptance

	proofs uint64 // acceptances after rejections
}

func newRejectionPolicy(suspectAfter time.Duration) *rejectionPolicy {
	return &rejectionPolicy{suspectAfter: suspectAfter, destinations: map[string]destinationAnswers{}}
}

// recordAcceptance records that a destination accepted a change.
func (p *rejectionPolicy) recordAcceptance(destination string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.destinations[destination]
	if d.Accepted != now.Unix() || d.Rejections > 0 || d.Usual > 0 {
		d.Usual += (d.Rejections - d.Usual) / 4
		d.proofs += uint64(min(d.Rejections, 1))
		d.Accepted, d.Rejections = now.Unix(), 0
		p.destinations[destination] = d
	}
}

// believeRejection reports whether a rejection is about the change; otherwise the destination is suspected, and the change
// is tried until it is accepted. proofs is another number after each acceptance. The caller does not ask again about a change
// whose rejection is believed, so that it counts once.
func (p *rejectionPolicy) believeRejection(destination string, now time.Time) (believed bool, proofs uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.destinations[destination]
	d.Rejected = now.Unix()
	atMost := max(maxRejections, maxUsual*d.Usual)
	if now.Sub(time.Unix(d.Accepted, 0)) >= p.suspectAfter {
		atMost = maxUnprovenRejections
	}
	if believed = p.suspectAfter < 0 || d.Rejections < atMost; believed {
		d.Rejections++
	}
	p.destinations[destination] = d
	return believed, d.proofs
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
