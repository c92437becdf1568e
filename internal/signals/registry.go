package signals

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Registry holds the signals of an exporter and stores each change of them. It is safe for concurrent use.
type Registry struct {
	save func(context.Context, map[uint64][]byte) error

	saving sync.Mutex        // held during a change: one after the other
	stored map[uint64][]byte // entries in the stores by number, nil where one may have another; requires saving

	mu        sync.Mutex
	book      Book
	unsaved   bool                  // a store lacks the book, or may have another one
	refusedAt atomic.Int64          // when a refusal was last stored before it was answered, in ns since 1970
	executing map[string]*execution // by ID of the signal
}

type execution struct {
	request string        // its fingerprint
	ended   chan struct{} // closed when signal and err are set

	signal Signal
	err    error
}

// NewRegistry returns an empty registry. save stores entries of a book by their number, and removes those without a value,
// all in one write; it is durable when it returns nil.
func NewRegistry(save func(context.Context, map[uint64][]byte) error) *Registry {
	return &Registry{save: save, stored: map[uint64][]byte{}, executing: map[string]*execution{}}
}

// Load replaces the signals by the newest of several stored books, which it decodes, unless the registry has a newer one
// that is not stored yet. The other books are replaced by it with the next [Registry.SaveUnsaved].
func (r *Registry) Load(books ...map[uint64][]byte) error {
	r.saving.Lock()
	defer r.saving.Unlock()
	newest, revisions := r.copyBook(), map[uint64]bool{}
	for _, entries := range books {
		b, err := Decode(entries)
		if err != nil {
			return err
		}
		if revisions[b.Revision] = true; b.Revision > newest.Revision {
			newest = b
		}
	}
	if isSame := len(revisions) == 1 && revisions[newest.Revision]; isSame {
		r.stored = maps.Clone(books[0])
		r.setBook(newest, false)
		return nil
	}
	r.distrust(append(books, r.stored)...)
	r.setBook(newest, true)
	return nil
}

// distrust records that a store may have something else under the numbers of entries. Requires saving.
func (r *Registry) distrust(all ...map[uint64][]byte) {
	for _, entries := range all {
		for number := range entries {
			r.stored[number] = nil
		}
	}
}

// Forget drops all signals from memory, also what is not stored: another process may have stored newer ones since.
func (r *Registry) Forget() {
	r.saving.Lock()
	defer r.saving.Unlock()
	r.setBook(Book{}, false)
}

// List returns a copy of all signals, the oldest first.
func (r *Registry) List() []Signal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.book.Signals)
}

// Find returns the signal with an ID.
func (r *Registry) Find(id string) (Signal, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.book.Find(id)
}

// ActivePause returns the pause that is in force for a sink or a rule.
func (r *Registry) ActivePause(of Subject) (Signal, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.book.ActivePause(of)
}

// Execute executes a request, which gets an ID if it has none, and returns the signal as it is kept. Of several requests
// under one ID the first one is executed; the others wait for that, until ctx ends, and get the same answer. One that asks
// for something else under that ID gets an [InvalidError].
func (r *Registry) Execute(ctx context.Context, request Request, execute func(Request) (Signal, error)) (Signal, error) {
	request = request.withID()
	e, kept, isFirst := r.beginExecution(request)
	asked := kept.Request
	if e != nil {
		asked = e.request
	}
	switch {
	case asked != request.fingerprint():
		return Signal{}, &InvalidError{fmt.Sprintf("the ID %s is that of another request, which asked for something else: choose another one", request.ID)}
	case e == nil:
		return kept, nil
	case isFirst:
		defer r.endExecution(request.ID, e)
		e.signal, e.err = execute(request)
		if kept, found := r.Find(request.ID); found { // with an error, too: it is aborted if it could not be stored
			e.signal = kept
		}
		return e.signal, e.err
	}
	select {
	case <-e.ended:
		return e.signal, e.err
	case <-ctx.Done():
		return Signal{}, fmt.Errorf("signal %s is being executed, and has no answer yet: %w", request.ID, ctx.Err())
	}
}

// beginExecution returns the execution of a request under its ID, and whether that begins now; nil and the signal if one has
// ended before.
func (r *Registry) beginExecution(request Request) (e *execution, kept Signal, isFirst bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.executing[request.ID]; e != nil {
		return e, kept, false
	}
	if kept, found := r.book.Find(request.ID); found {
		return nil, kept, false
	}
	e = &execution{request: request.fingerprint(), ended: make(chan struct{})}
	r.executing[request.ID] = e
	return e, kept, true
}

func (r *Registry) endExecution(id string, e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.executing, id)
	close(e.ended)
}

// IsExecuting reports whether this process executes the signal with an ID.
func (r *Registry) IsExecuting(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.executing[id] != nil
}

// Commit changes the signals by change and returns nil once that is durable. If it cannot be stored, nothing of it is in
// force, and the signal with this ID, which has the error as its result, is aborted.
func (r *Registry) Commit(ctx context.Context, id string, change func(*Book)) error {
	r.saving.Lock()
	defer r.saving.Unlock()
	before := r.copyBook()
	next := r.copyBook()
	change(&next)
	next.Revision++
	err := r.saveBook(ctx, next)
	if err == nil {
		r.setBook(next, false)
		return nil
	}
	// The store may have it all the same: what replaces it has to be newer.
	before.Revision = next.Revision + 1
	if s, ok := next.Find(id); ok {
		before.Put(s.End(Aborted, time.Now(), 0, "not stored: "+err.Error()))
	}
	r.setBook(before, true)
	return err
}

// refusalInterval is how often a refusal is stored before it is answered. Those in between are stored with the next write,
// if they are still kept then: they change nothing.
const refusalInterval = time.Second

// Refuse keeps a signal that is refused, and returns it.
func (r *Registry) Refuse(ctx context.Context, s Signal, reason string) Signal {
	s = s.End(Refused, time.Now(), 0, reason)
	r.Update(func(b *Book) { b.Put(s) })
	now := time.Now().UnixNano()
	if at := r.refusedAt.Load(); now-at >= int64(refusalInterval) && r.refusedAt.CompareAndSwap(at, now) {
		_ = r.SaveUnsaved(ctx) // what is not saved stays so, for the next write
	}
	return s
}

// Update changes the signals by change at once; the next [Registry.SaveUnsaved] stores that. It is for what follows from
// the signals that are stored, so that it comes about again if the process ends before.
func (r *Registry) Update(change func(*Book)) {
	r.saving.Lock()
	defer r.saving.Unlock()
	next := r.copyBook()
	change(&next)
	next.Revision++
	r.setBook(next, true)
}

// isSaved reports whether the store has all signals as they are.
func (r *Registry) isSaved() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.unsaved
}

// SaveUnsaved stores what is not stored yet.
func (r *Registry) SaveUnsaved(ctx context.Context) error {
	r.saving.Lock()
	defer r.saving.Unlock()
	if r.isSaved() {
		return nil
	}
	book := r.copyBook()
	err := r.saveBook(ctx, book)
	if err == nil {
		r.setBook(book, false)
	}
	return err
}

// saveBook stores the entries of a book that a store may lack, or have otherwise. Requires saving.
func (r *Registry) saveBook(ctx context.Context, b Book) error {
	entries, err := b.encode()
	if err != nil {
		return err
	}
	changed := map[uint64][]byte{}
	for number, text := range entries {
		if !bytes.Equal(text, r.stored[number]) {
			changed[number] = text
		}
	}
	for number := range r.stored {
		if entries[number] == nil {
			changed[number] = nil
		}
	}
	if err := r.save(ctx, changed); err != nil {
		r.distrust(changed)
		return err
	}
	r.stored = entries
	return nil
}

func (r *Registry) copyBook() Book {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Book{Revision: r.book.Revision, Signals: slices.Clone(r.book.Signals)}
}

func (r *Registry) setBook(b Book, unsaved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.book, r.unsaved = b, unsaved
}

// How many signals are kept after their end. Those that have changed nothing do not push out others.
const (
	maxEnded     = 100
	maxUnchanged = 20
)

// Book is all signals that are kept, the oldest first. Its methods change it and contact nothing.
type Book struct {
	Revision uint64 // number of changes: of two books of one deployment the higher one is newer
	Signals  []Signal
}

// Find returns the signal with an ID.
func (b *Book) Find(id string) (Signal, bool) {
	i := b.index(id)
	if i < 0 {
		return Signal{}, false
	}
	return b.Signals[i], true
}

// ActivePause returns the pause that is in force for a sink or a rule.
func (b *Book) ActivePause(of Subject) (Signal, bool) {
	for _, s := range b.Signals {
		if s.Kind == Pause && s.State == Active && s.Subject() == of {
			return s, true
		}
	}
	return Signal{}, false
}

// Put adds a signal, or replaces the one with its ID. A pause supersedes the one in force. The oldest ended signals beyond
// the bounds are dropped.
func (b *Book) Put(s Signal) {
	if s.Kind == Pause && s.State == Active {
		if before, paused := b.ActivePause(s.Subject()); paused && before.ID != s.ID {
			s.Since = before.Since
			b.Put(before.End(Superseded, s.Created, 0, "by signal "+s.ID))
		}
	}
	if i := b.index(s.ID); i >= 0 {
		s.number = b.Signals[i].number
		b.Signals[i] = s
	} else {
		s.number = 1
		if n := len(b.Signals); n > 0 {
			s.number = b.Signals[n-1].number + 1
		}
		b.Signals = append(b.Signals, s)
	}
	changedNothing := func(s State) bool { return s == Refused || s == Nothing }
	b.dropOldest(maxUnchanged, changedNothing)
	b.dropOldest(maxEnded, func(s State) bool { return s != Active && !changedNothing(s) })
}

// dropOldest drops the oldest signals in a state beyond a number of them.
func (b *Book) dropOldest(most int, is func(State) bool) {
	n := 0
	for _, s := range b.Signals {
		if is(s.State) {
			n++
		}
	}
	b.Signals = slices.DeleteFunc(b.Signals, func(s Signal) bool {
		if n <= most || !is(s.State) {
			return false
		}
		n--
		return true
	})
}

// PutIfActive replaces the signal with the ID of s, unless that has ended meanwhile.
func (b *Book) PutIfActive(s Signal) {
	if before, ok := b.Find(s.ID); ok && before.State == Active {
		b.Put(s)
	}
}

func (b *Book) index(id string) int {
	return slices.IndexFunc(b.Signals, func(s Signal) bool { return s.ID == id })
}

// keyRevision is the number under which the revision is stored. Signals have higher ones, in their order.
const keyRevision = 0

// encode returns the book as it is stored: by number of the entry.
func (b *Book) encode() (map[uint64][]byte, error) {
	entries := map[uint64][]byte{keyRevision: strconv.AppendUint(nil, b.Revision, 10)}
	for _, s := range b.Signals {
		text, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		entries[s.number] = text
	}
	return entries, nil
}

// Decode reads a book from its entries; none are a book without signals.
func Decode(entries map[uint64][]byte) (b Book, err error) {
	for _, number := range slices.Sorted(maps.Keys(entries)) {
		if number == keyRevision {
			b.Revision, err = strconv.ParseUint(string(entries[number]), 10, 64)
		} else {
			s := Signal{number: number}
			err = json.Unmarshal(entries[number], &s)
			b.Signals = append(b.Signals, s)
		}
		if err != nil {
			return b, fmt.Errorf("the stored signals cannot be read: %w", err)
		}
	}
	return b, nil
}
