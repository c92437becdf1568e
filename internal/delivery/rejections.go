package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
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

	// maxStoredDestinations bounds how many destinations have answers that are stored with the cursor.
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
// is tried until it is accepted. proofs is another number after each acceptance. The caller does not ask again once a
// rejection is believed, so that it counts once.
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

// unroutableLane holds the changes that have no lane of the sink. The sink never gets them; all become dead letters.
const unroutableLane sinks.Lane = ""

type laneResolver struct {
	sinkName string
	sink     sinks.Sink
	cfg      *Config

	laneLister sinks.LaneLister // the sink, if it has several lanes; else nil

	// mu is held while the sink names, replaces or releases lanes, until the backlog has the result. It is taken before
	// backlog.mu.
	mu      sync.Mutex
	scratch []placement // result of resolveLanes
}

// routeOf returns whether a change is for this sink, and for which topic.
func (r *laneResolver) routeOf(c *event.Change) Route {
	switch {
	case c.Gap != nil && r.isOfAnother(c.Gap.Sink), // of what another sink missed
		r.isOfAnother(c.OnlySink), // which alone lacks it
		c.Held.Skips(r.sinkName, r.cfg.FormerName):
		return Route{Skip: true}
	case r.cfg.Route == nil:
		return Route{}
	}
	return r.cfg.Route(c)
}

// isOfAnother reports whether a record that is for one sink, "" for all, is for another one.
func (r *laneResolver) isOfAnother(only string) bool {
	return only != "" && only != r.sinkName && only != r.cfg.FormerName
}

type placement struct {
	lane  sinks.Lane
	entry entry
}

// isAlreadyDelivered reports whether an earlier process delivered the change.
func (r *laneResolver) isAlreadyDelivered(p placement) bool {
	return r.cfg.AlreadyDelivered != nil && p.lane != unroutableLane && r.cfg.AlreadyDelivered(p.lane, p.entry.change)
}

// resolveLanes returns the lane of a change and the entry to queue, or every lane of a watermark and the copy for each. A
// change that is withheld, or that the sink rejects here, belongs to unroutableLane. An error is a defect of the sink.
// The result is valid until the next call. Requires mu.
func (r *laneResolver) resolveLanes(record event.Record, to Route) ([]placement, error) {
	clear(r.scratch)
	r.scratch = r.scratch[:0]
	if record.Change.Withheld != "" {
		rejection := &sinks.RejectedError{Reason: "withheld: " + record.Change.Withheld}
		return r.placeChange(unroutableLane, newEntry(record, nil, rejection)), nil
	}
	var name sinks.Lane
	var err error
	if record.Change.Type == event.Watermark {
		err = r.placeWatermark(record, to)
	} else if name, err = r.askSinkForLane(record.Change, to.Topic); err == nil {
		r.placeChange(name, newEntry(record, to.Topic, nil))
	}
	if err == nil {
		return r.scratch, nil
	}
	switch {
	case !contains[*sinks.RejectedError](err):
		return nil, fmt.Errorf("sink %q: defect: no lane for the change at offset %d: %w", r.sinkName, record.Offset, err)
	case record.Change.Type == event.Watermark: // no lane can have it
		return nil, nil
	}
	return r.placeChange(unroutableLane, newEntry(record, nil, err)), nil
}

func (r *laneResolver) placeChange(lane sinks.Lane, e entry) []placement {
	r.scratch = append(r.scratch, placement{lane, e})
	return r.scratch
}

// placeWatermark places a copy of a watermark in every lane.
func (r *laneResolver) placeWatermark(record event.Record, to Route) error {
	var lanes []sinks.Lane
	var err error
	lister := r.laneLister
	if lister != nil {
		lanes, err = lister.AllLanes(record.Change, to.Topic)
	} else {
		var only sinks.Lane
		only, err = r.askSinkForLane(record.Change, to.Topic)
		lanes = []sinks.Lane{only}
	}
	if err != nil {
		return err
	}
	for i, lane := range lanes {
		c := record.Change.WithLane(i, len(lanes))
		if len(lanes) == 1 && lister != nil && lister.StandsForSeveral(lane) {
			c.Watermark.Lane, c.Watermark.Lanes = 0, 0
		}
		if to.Partial {
			c.Watermark.OmitDigest()
		}
		r.placeChange(lane, newEntry(event.Record{Offset: record.Offset, Change: c, InFrame: record.InFrame}, to.Topic, nil))
	}
	return nil
}

// askSinkForLane asks the sink for the lane of a change; a nil topic is the sink's own.
func (r *laneResolver) askSinkForLane(c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if topic == nil {
		return r.sink.Lane(c)
	}
	router, ok := r.sink.(sinks.Router)
	if !ok {
		return "", fmt.Errorf("routed to the topic %s, but this sink has a single destination", topic)
	}
	return router.LaneTo(c, topic)
}
