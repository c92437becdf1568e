package attribution

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// HolderSink is the cursor name under which the journal stores what a [Holder] has released. It is not a valid name of a
// configured sink.
const HolderSink = "@authors"

// HolderJournal is the part of the journal that a [Holder] uses.
type HolderJournal interface {
	Journal
	LowestCursor(except ...string) uint64
	OldestRecord(ctx context.Context) (event.Record, bool, error)
}

// HolderOptions configure a [Holder]. All are required.
type HolderOptions struct {
	Journal  HolderJournal
	Crowded  func() bool // the journal is filling up: nothing waits any longer
	Internal []string    // cursors that are not of sinks
}

const (
	// maxHeld bounds the records that wait. Beyond it the journal is not read on; each waits for a bounded time.
	maxHeld = 50_000
	// maxReleasedBytes bounds the copies of one write, because changes may wait for it.
	maxReleasedBytes = 256 << 10
	// waitOver is why an author is not known that did not come in time.
	waitOver Reason = "wait"
)

// Holder releases the records that routes hold back for their authors: it appends a copy of each to the journal, with the
// author or the reason why there is none. Records of one object keep their order, and so do those of a resource around a
// control record. What waits is in the journal. A copy, and that its record does not wait any longer, are one write. The
// cursor is behind everything that is not settled by the sinks, so that what follows from the journal's cursors holds for
// copies, too.
type Holder struct {
	options   HolderOptions
	startedAt time.Time

	mu       sync.Mutex
	read     uint64          // offset up to which everything was taken
	resolved resolvedOffsets // by an earlier process, after its cursor
	pending  []*heldRecord   // by offset
	changed  chan struct{}   // holds a token when something may be released

	// Of Run alone.
	low    uint64 // of the cursor
	copied holderMark
	stored event.Cursor
}

// holderMark is where everything up to low is copied, and the copies are up to an offset.
type holderMark struct{ low, newest uint64 }

type heldRecord struct {
	offset   uint64
	id       string // of a change that waits for its author; "" of one that waits for others
	object   string // key; "" for a control record
	resource string
	isChange bool
	until    time.Time
	author   *event.Attribution
	reason   Reason // why there is no author; "" if it may still come
	taken    bool   // its copy is being appended
}

// NewHolder returns a Holder.
func NewHolder(options HolderOptions) *Holder {
	return &Holder{options: options, startedAt: time.Now(), changed: make(chan struct{}, 1)}
}

// Run releases records until ctx ends or the journal fails.
func (h *Holder) Run(ctx context.Context) error {
	if err := h.load(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { cancel(h.readJournal(ctx)) })
	defer reading.Wait()
	defer cancel(nil)
	tick := time.NewTicker(resolveInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-h.changed:
		case <-tick.C:
		}
		for more := true; more; {
			var err error
			if more, err = h.release(ctx, time.Now()); err != nil {
				return err
			}
		}
	}
}

// load continues where an earlier process was.
func (h *Holder) load(ctx context.Context) error {
	if err := awaitWritten(ctx, h.options.Journal); err != nil {
		return err
	}
	cursor, found, err := h.options.Journal.Cursor(HolderSink)
	if err != nil {
		return err
	}
	if !found {
		cursor.Low = h.options.Journal.Newest()
		oldest, exists, err := h.options.Journal.OldestRecord(ctx)
		if err != nil {
			return err
		} else if exists {
			cursor.Low = oldest.Offset - 1
		}
	}
	h.resolved, err = decodeResolved(cursor.State)
	h.read, h.low, h.stored = cursor.Low, cursor.Low, cursor
	h.copied = holderMark{cursor.Low, h.options.Journal.Newest()}
	return err
}

func (h *Holder) readJournal(ctx context.Context) error {
	for {
		h.mu.Lock()
		read, full := h.read, len(h.pending) >= maxHeld
		h.mu.Unlock()
		if full {
			if ratelimit.Sleep(ctx, resolveInterval) != nil {
				return context.Cause(ctx)
			}
			continue
		}
		records, err := h.options.Journal.Read(ctx, read)
		if err != nil {
			return err
		}
		h.addRecords(records)
	}
}

// addRecords takes what was read: records that are held, and authors of those.
func (h *Holder) addRecords(records []event.Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range records {
		h.read = r.Offset
		c := r.Change
		switch {
		case c.Held == nil || c.Held.Released:
		case c.OnlySink != "" && !slices.Contains(c.Held.Sinks, c.OnlySink): // goes to that sink at once
		case c.Type == event.Attributed && h.addAuthor(c.Attribution):
		case !h.resolved.contains(r.Offset):
			h.pending = append(h.pending, h.newHeld(r))
		}
	}
	ratelimit.Wake(h.changed)
}

// addAuthor gives an author to the change that waits for it; false if that does not wait any longer. Requires mu.
func (h *Holder) addAuthor(a *event.Attribution) bool {
	for _, p := range h.pending {
		if p.id == a.Of && !p.taken {
			own := (&event.Change{Attribution: a}).Clone().Attribution
			own.Of, p.author = "", own
			return true
		}
	}
	return false
}

func (h *Holder) newHeld(r event.Record) *heldRecord {
	of := r.Change
	p := &heldRecord{offset: r.Offset, resource: of.Resource.String(), until: of.ObservedAt.Add(of.Held.Wait)}
	if late := h.startedAt.Add(of.Held.Wait); p.until.Before(late) && of.ObservedAt.Before(h.startedAt) {
		p.until = late // audit events of the time between two processes are still to come
	}
	if !of.Type.IsControl() {
		p.object = of.Key()
	}
	switch of.Type {
	case event.Added, event.Updated, event.Deleted:
		p.isChange = true
	default:
		return p
	}
	if c, eligible := ChangeOf(r); eligible {
		p.id = c.ID
	} else {
		p.reason = FromList
	}
	return p
}

// Held returns how many records wait. A nil Holder holds none.
func (h *Holder) Held() int {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pending)
}

// RecordUnresolved records that a change has no author, for this reason.
func (h *Holder) RecordUnresolved(offset uint64, reason Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, found := slices.BinarySearchFunc(h.pending, offset, func(p *heldRecord, offset uint64) int { return cmp.Compare(p.offset, offset) })
	if found {
		h.pending[i].reason = reason
	}
}

// release appends the copies of what need not wait any longer, up to a bound; more reports whether that was reached.
func (h *Holder) release(ctx context.Context, now time.Time) (more bool, err error) {
	h.mu.Lock()
	due := h.dueRecords(now, h.options.Crowded())
	h.mu.Unlock()
	var frame []event.Record
	var copies []*event.Change
	for i, bytes := 0, 0; i < len(due); i++ {
		p := due[i]
		if len(frame) == 0 || p.offset > frame[len(frame)-1].Offset {
			if frame, err = h.options.Journal.Read(ctx, p.offset-1); err != nil {
				return false, err
			}
		}
		c := p.copyOf(frame[p.offset-frame[0].Offset].Change)
		copies = append(copies, c)
		if bytes += c.Size(); bytes >= maxReleasedBytes {
			h.mu.Lock()
			for _, p := range due[i+1:] { // they wait until the next write
				p.taken = false
			}
			h.mu.Unlock()
			due, more = due[:i+1], i+1 < len(due)
		}
	}
	return more, h.store(ctx, copies)
}

// dueRecords takes what need not wait any longer, in order. Requires mu.
func (h *Holder) dueRecords(now time.Time, crowded bool) (due []*heldRecord) {
	objects, resources, barriers := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range h.pending {
		if p.id != "" && p.author == nil && p.reason == "" {
			switch {
			case crowded:
				p.reason = Evicted
			case !now.Before(p.until):
				p.reason = waitOver
			}
		}
		behind := barriers[p.resource] || objects[p.object] || p.object == "" && resources[p.resource]
		if !behind && (p.id == "" || p.author != nil || p.reason != "") {
			p.taken = true
			due = append(due, p)
			continue
		}
		resources[p.resource] = true
		if p.object == "" {
			barriers[p.resource] = true
		} else {
			objects[p.object] = true
		}
	}
	return due
}

// copyOf returns the copy that is released of a record.
func (p *heldRecord) copyOf(of *event.Change) *event.Change {
	c := of.Clone()
	c.Held = &event.HeldInfo{Sinks: c.Held.Sinks, Released: true}
	switch {
	case p.author != nil:
		c.Attribution = p.author
	case p.isChange:
		c.Held.Unknown = string(cmp.Or(p.reason, waitOver))
	}
	return c
}

// store appends copies, and stores which records do not wait any longer, in one write.
func (h *Holder) store(ctx context.Context, copies []*event.Change) error {
	resolved, free := h.progress()
	settled := h.options.Journal.LowestCursor(h.options.Internal...) >= h.copied.newest
	if settled {
		h.low = h.copied.low
	}
	if len(copies) > 0 || h.low != h.stored.Low {
		h.stored = event.Cursor{Low: h.low, State: encodeResolved(resolved)}
		if err := h.options.Journal.AppendAttributions(ctx, HolderSink, h.stored, copies, nil, nil); err != nil {
			return err
		}
	}
	if settled {
		h.copied = holderMark{free, h.options.Journal.Newest()}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending = slices.DeleteFunc(h.pending, func(p *heldRecord) bool { return p.taken })
	return nil
}

// progress returns what does not wait any longer once what is taken is appended, and up to where nothing waits.
func (h *Holder) progress() (resolved resolvedOffsets, free uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var waiting []uint64
	for _, p := range h.pending {
		if !p.taken {
			waiting = append(waiting, p.offset)
		}
	}
	resolved, free = h.resolved.after(h.read, waiting), h.read
	if len(waiting) > 0 {
		free = waiting[0] - 1
	}
	return resolved, free
}
