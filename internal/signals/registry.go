package signals

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Registry holds the signals of an exporter and stores each change of them. It is safe for concurrent use.
type Registry struct {
	save func(context.Context, []byte) error

	saving sync.Mutex // held during a change: one after the other

	mu        sync.Mutex
	book      Book
	unsaved   bool                  // the store lacks the book, or may have another one
	executing map[string]*execution // by ID of the signal
}

// execution is a request that is being executed.
type execution struct {
	ended  chan struct{} // closed when signal and err are set
	signal Signal
	err    error
}

// NewRegistry returns an empty registry. save stores a book in place of the one before; it is durable when it returns nil.
func NewRegistry(save func(context.Context, []byte) error) *Registry {
	return &Registry{save: save, executing: map[string]*execution{}}
}

// Decode reads a stored book; an empty one is a book without signals.
func Decode(stored []byte) (b Book, err error) {
	if len(stored) == 0 {
		return b, nil
	}
	if err = json.Unmarshal(stored, &b); err != nil {
		err = fmt.Errorf("the stored signals cannot be read: %w", err)
	}
	return b, err
}

// Load replaces the signals by the newest of several stored books, unless the registry has a newer one that is not stored
// yet. The other books are replaced by it with the next [Registry.SaveUnsaved].
func (r *Registry) Load(books ...Book) {
	r.saving.Lock()
	defer r.saving.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range books {
		if b.Revision > r.book.Revision {
			r.book = b
		}
	}
	r.unsaved = r.unsaved || slices.ContainsFunc(books, func(b Book) bool { return b.Revision < r.book.Revision })
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
// under one ID the first one is executed; the others wait for that, until ctx ends, and get the same answer.
func (r *Registry) Execute(ctx context.Context, request Request, execute func(Request) (Signal, error)) (Signal, error) {
	request = request.withID()
	e, kept, isFirst := r.beginExecution(request.ID)
	switch {
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

// beginExecution returns the execution of the signal with an ID, and whether that begins now; nil and the signal if it has
// ended before.
func (r *Registry) beginExecution(id string) (e *execution, kept Signal, isFirst bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.executing[id]; e != nil {
		return e, kept, false
	}
	if kept, found := r.book.Find(id); found {
		return nil, kept, false
	}
	e = &execution{ended: make(chan struct{})}
	r.executing[id] = e
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

// IsSaved reports whether the store has all signals as they are.
func (r *Registry) IsSaved() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.unsaved
}

// SaveUnsaved stores what is not stored yet.
func (r *Registry) SaveUnsaved(ctx context.Context) error {
	r.saving.Lock()
	defer r.saving.Unlock()
	if r.IsSaved() {
		return nil
	}
	book := r.copyBook()
	err := r.saveBook(ctx, book)
	if err == nil {
		r.setBook(book, false)
	}
	return err
}

func (r *Registry) saveBook(ctx context.Context, b Book) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return r.save(ctx, text)
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
