package attribution

import (
	"fmt"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// shared is what the reader of the journal, the resolving loop and the intakes share. mu guards all fields and is never held
// across I/O or a wait, except while load runs before everything else.
type shared struct {
	mu       sync.Mutex
	matcher  *Matcher
	losses   lossTracker
	read     uint64          // offset up to which the matcher has every eligible change
	resolved resolvedOffsets // by an earlier process, after its cursor
}

func (s *shared) readOffset() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read
}

// addRecords adds the changes of the journal. It returns how many were revealed by a list, which are never resolved.
func (s *shared) addRecords(records []event.Record) (fromList uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		s.read = r.Offset
		c, eligible := ChangeOf(r)
		switch {
		case eligible && s.resolved.contains(r.Offset): // it shows something for those that wait
			s.matcher.recordChange(c)
			if c.Type == event.Deleted {
				s.matcher.history.removeMark(c.UID)
			}
		case eligible:
			s.matcher.AddChange(c)
		case c.UID != "":
			s.matcher.recordChange(c)
			if r.Change.Coalesced {
				fromList++
			}
		}
		s.losses.recordResource(r.Change.Resource)
	}
	return fromList
}

// numberRequest assigns a number to a request and returns true, or returns false if the matcher holds the request already.
func (s *shared) numberRequest(r *Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.matcher.NumberRequest(r)
}

func (s *shared) addRequests(requests []*Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		s.addRequest(r)
	}
}

// addRequest adds a stored request, or drops its evidence if the matcher does not keep it. Requires mu.
func (s *shared) addRequest(r *Request) {
	if !s.matcher.AddRequest(r) {
		s.matcher.DropNumbers(r.Number)
	}
}

// dropEvidence drops evidence that may have been stored although its sender got an error: the sender repeats it, and it gets
// other numbers then.
func (s *shared) dropEvidence(evidence []event.Evidence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range evidence {
		s.matcher.DropNumbers(e.Number)
	}
}

// newLoss returns a loss that has to be stored, or nil if it extends one that is. A zero since stands for the end of the
// last loss.
func (s *shared) newLoss(since, now time.Time, reason string) *Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.losses.extendLoss(reason, now) {
		return nil
	}
	if since.IsZero() {
		since = s.losses.lastLoss
	}
	return &Loss{Numbers: []uint64{s.matcher.NextNumber()}, Reason: reason, From: since, To: now}
}

func (s *shared) addLoss(l *Loss) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.losses.addLoss(l)
}

type findings struct {
	Findings
	gaps   []*event.Change // gap records to be emitted
	cursor uint64          // every change up to here is resolved, or not eligible
	// resolved are those after cursor.
	resolved resolvedOffsets
	evicted  uint64        // requests dropped because of their bound
	bytes    int           // estimated memory of what waits
	waiting  int           // changes that wait
	lag      time.Duration // by which audit events are late
	// unproven is set if a change waits for a newer proof that the admission policy was in force.
	unproven bool
	unnamed  int // changes without an author since the newest audit event
}

// resolve resolves what can be resolved at this time; all of it if resolveAll is set. Stamps are judged by proof, nil
// without them. lastEvent is called after that: an event that arrives meanwhile ends a silence.
func (s *shared) resolve(now time.Time, lastEvent func() time.Time, resolveAll bool, proof stampProof) findings {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.matcher.useStamps(proof)
	s.matcher.Resolve(now)
	if resolveAll {
		s.matcher.ResolveAll()
	}
	f := findings{Findings: s.matcher.TakeFindings(), evicted: s.matcher.requests.evicted, cursor: s.read}
	if s.matcher.requests.evicted = 0; f.evicted > 0 {
		if reason := "audit events were evicted to make room for newer ones"; !s.losses.extendLoss(reason, now) {
			s.losses.addLoss(&Loss{Reason: reason, From: s.losses.lastLoss, To: now})
		}
	}
	var reported []uint64
	f.gaps, reported = s.losses.collectGaps(f.Resolved, lastEvent(), now)
	f.Drop = append(f.Drop, reported...)
	var waiting []uint64 // offsets of the unresolved changes
	for _, p := range s.matcher.changes.all {
		if !p.resolved {
			waiting = append(waiting, p.Offset)
		}
	}
	if len(waiting) > 0 {
		f.cursor = waiting[0] - 1
	}
	f.resolved = s.resolved.after(s.read, waiting)
	f.bytes, f.waiting = s.matcher.waitingBytes(), len(s.matcher.changes.all)
	f.lag, f.unproven, f.unnamed = s.matcher.SourceLag(now), s.matcher.unproven, s.losses.countUnnamed()
	return f
}

// load restores what an earlier process left: changes after the cursor are read again, resources get their losses, and
// evidence waits from now on.
func (s *shared) load(cursor uint64, resolved resolvedOffsets, resources []event.Resource, evidence func(each func(event.Evidence) error) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read, s.resolved = cursor, resolved
	s.matcher.startedAt = time.Now()
	s.matcher.lag.startedAt = s.matcher.startedAt
	for _, r := range resources {
		s.losses.recordResource(r)
	}
	return evidence(s.loadEvidence)
}

// loadEvidence adds one piece of stored evidence. Requires mu.
func (s *shared) loadEvidence(e event.Evidence) error {
	decoded, err := decodeEvidence(e)
	if err != nil {
		return fmt.Errorf("evidence %d: %w", e.Number, err)
	}
	s.matcher.ReserveNumber(e.Number)
	switch e := decoded.(type) {
	case *DeleteMark:
		s.matcher.AddDeleteMark(e)
	case *Loss:
		s.losses.addLoss(e)
	case *Request:
		e.Arrived = s.matcher.startedAt
		lag := s.matcher.lag.source(e.Origin)
		lag.stored = max(lag.stored, e.Lag)
		s.addRequest(e)
	}
	return nil
}
