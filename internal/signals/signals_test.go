package signals

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// memoryStore stores a book unless it fails.
type memoryStore struct {
	stored  map[uint64][]byte
	err     error
	written int // bytes, and as many writes
	writes  int
}

func (s *memoryStore) save(_ context.Context, entries map[uint64][]byte) error {
	if s.err != nil {
		return s.err
	}
	if s.stored == nil {
		s.stored = map[uint64][]byte{}
	}
	s.writes++
	for number, value := range entries {
		s.written += len(value)
		if s.stored[number] = value; value == nil {
			delete(s.stored, number)
		}
	}
	return nil
}

// load loads books, which are given as they are stored.
func load(t *testing.T, r *Registry, books ...Book) {
	t.Helper()
	var stored []map[uint64][]byte
	for _, b := range books {
		entries, err := b.encode()
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, entries)
	}
	if err := r.Load(stored...); err != nil {
		t.Fatal(err)
	}
}

// bookOf returns a book with signals.
func bookOf(revision uint64, all ...Signal) (b Book) {
	for _, s := range all {
		b.Put(s)
	}
	b.Revision = revision
	return b
}

func (s *memoryStore) book(t *testing.T) Book {
	t.Helper()
	b, err := Decode(s.stored)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestASignalThatCannotBeStoredIsAbortedAndNeverInForce(t *testing.T) {
	store := &memoryStore{}
	r := NewRegistry(store.save)
	first := Request{Kind: Pause, Sink: "a"}.New(noon)
	if err := r.Commit(t.Context(), first.ID, func(b *Book) { b.Put(first) }); err != nil {
		t.Fatal(err)
	}
	store.err = errors.New("the bus is away")
	second := Request{Kind: Pause, Sink: "b"}.New(noon)
	answer, err := r.Execute(t.Context(), Request{ID: second.ID}, func(Request) (Signal, error) {
		return second, r.Commit(t.Context(), second.ID, func(b *Book) { b.Put(second) })
	})
	if !errors.Is(err, store.err) || answer.State != Aborted {
		t.Fatalf("%+v, %v", answer, err)
	}
	if _, ok := r.ActivePause(Subject{Sink: "b"}); ok {
		t.Error("a pause that is not stored is in force")
	}
	all := r.List()
	if len(all) != 2 || all[0].State != Active || all[1].State != Aborted || !strings.Contains(all[1].Result, "the bus is away") {
		t.Fatalf("signals %+v", all)
	}
	// The store may have got the refused book after all: what is stored next is newer.
	late := bookOf(2, first, second)
	load(t, r, late)
	if _, ok := r.ActivePause(Subject{Sink: "b"}); ok {
		t.Error("a late write of a signal that was answered with an error is in force")
	}
	store.err = nil
	if err := r.SaveUnsaved(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := store.book(t); got.Revision <= late.Revision || len(got.Signals) != 2 || got.Signals[1].State != Aborted {
		t.Errorf("stored is %+v", got)
	}
}

// TestASignalInProgressDelaysThoseUnderItsIDOnly, which get its answer, its error too, or stop waiting for it.
func TestASignalInProgressDelaysThoseUnderItsIDOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry((&memoryStore{}).save)
		slow := Request{ID: NewID(), Kind: Snapshot, Sink: "a"}
		begun, proceed, failure := 0, make(chan struct{}), errors.New("the journal is closed")
		fail := func(Request) (Signal, error) {
			begun++
			<-proceed
			return Signal{ID: slow.ID}, failure
		}
		var senders sync.WaitGroup
		for range 4 {
			senders.Go(func() {
				if s, err := r.Execute(t.Context(), slow, fail); s.ID != slow.ID || !errors.Is(err, failure) {
					t.Errorf("%+v, %v", s, err)
				}
			})
		}
		synctest.Wait() // one has begun, and the others wait for it
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := r.Execute(gone, slow, fail); !errors.Is(err, context.Canceled) || !r.IsExecuting(slow.ID) {
			t.Errorf("a sender that goes away gets %v", err)
		}
		pause := func(p Request) (Signal, error) {
			s := p.New(noon)
			return s, r.Commit(t.Context(), s.ID, func(b *Book) { b.Put(s) })
		}
		other, err := r.Execute(t.Context(), Request{Kind: Pause, Sink: "b"}, pause)
		if kept, found := r.Find(other.ID); err != nil || !found || other.State != Active || r.IsExecuting(other.ID) {
			t.Errorf("%+v, %v; kept is %+v", other, err, kept)
		}
		close(proceed)
		senders.Wait()
		if begun != 1 {
			t.Errorf("the signal was executed %d times", begun)
		}
		if again, err := r.Execute(t.Context(), slow, pause); err != nil || again.ID != slow.ID {
			t.Errorf("sent again: %+v, %v", again, err)
		}
	})
}

func TestTheNewestOfSeveralStoredBooksCounts(t *testing.T) {
	store := &memoryStore{}
	r := NewRegistry(store.save)
	older, newer := bookOf(3), bookOf(4, Request{Kind: Pause, Sink: "a"}.New(noon))
	load(t, r, older, newer)
	if _, ok := r.ActivePause(Subject{Sink: "a"}); !ok {
		t.Error("the older book counts")
	}
	if err := r.SaveUnsaved(t.Context()); err != nil || store.book(t).Revision != 4 {
		t.Errorf("the place of the older book has %v, %v", store.stored, err)
	}
	store.stored = nil
	load(t, r, newer, newer)
	if err := r.SaveUnsaved(t.Context()); err != nil || store.stored != nil {
		t.Errorf("books that are equal are written again: %v, %v", store.stored, err)
	}
}

func TestWhatIsNotStoredDoesNotOutliveAFailover(t *testing.T) {
	r := NewRegistry((&memoryStore{}).save)
	old := Request{Kind: Pause, Sink: "a", For: time.Minute}.New(noon)
	journal := bookOf(5, old)
	load(t, r, journal)
	r.Update(func(b *Book) { b.PutIfActive(old.End(Done, noon, 0, "over")) }) // a standby finds it over
	state := bookOf(6, Request{Kind: Pause, Sink: "b"}.New(noon))
	r.Forget()
	load(t, r, journal, state)
	if _, ok := r.ActivePause(Subject{Sink: "b"}); !ok {
		t.Errorf("the pause that another process has stored is lost: %+v", r.List())
	}
}

func TestAPauseSupersedesTheOneInForceAndKeepsItsBeginning(t *testing.T) {
	var b Book
	first := Request{Kind: Pause, Sink: "a"}.New(noon)
	other := Request{Kind: Pause, Sink: "b"}.New(noon)
	second := Request{Kind: Pause, Sink: "a", For: time.Hour}.New(noon.Add(time.Minute))
	for _, s := range []Signal{first, other, second} {
		b.Put(s)
	}
	if got, _ := b.Find(first.ID); got.State != Superseded || got.Result != "by signal "+second.ID {
		t.Errorf("the first is %+v", got)
	}
	got, ok := b.ActivePause(Subject{Sink: "a"})
	if !ok || got.ID != second.ID || !got.Since.Equal(noon) || !got.Until.Equal(noon.Add(61*time.Minute)) {
		t.Errorf("in force is %+v", got)
	}
	if got, ok := b.ActivePause(Subject{Sink: "b"}); !ok || got.ID != other.ID {
		t.Errorf("of the other sink %+v is in force", got)
	}
}

func TestEndedSignalsAreBoundedAndThoseInForceAreKept(t *testing.T) {
	var b Book
	pause := Request{Kind: Pause, Sink: "a"}.New(noon)
	b.Put(pause)
	for i := range 2 * maxEnded {
		b.Put(Request{Kind: Resume, Sink: fmt.Sprint(i)}.New(noon).End(Done, noon, 0, "nothing waited"))
	}
	for i := range 2 * maxEnded {
		changedNothing := []State{Refused, Nothing}[i%2]
		b.Put(Request{Kind: Pause, Sink: fmt.Sprint(i)}.New(noon).End(changedNothing, noon, 0, "no such sink"))
	}
	if _, ok := b.ActivePause(Subject{Sink: "a"}); !ok || len(b.Signals) != 1+maxEnded+maxUnchanged || b.Signals[1].Sink != fmt.Sprint(maxEnded) {
		t.Errorf("kept are %d, the oldest of them %+v", len(b.Signals), b.Signals[1])
	}
	entries, err := b.encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(entries)
	if err != nil || !reflect.DeepEqual(again, b) {
		t.Errorf("stored and read again it is %+v, %v", again, err)
	}
}

// TestAWriteHasTheEntriesThatDiffer and not the whole book, also after writes that failed, perhaps too late.
func TestAWriteHasTheEntriesThatDiffer(t *testing.T) {
	store := &memoryStore{}
	r := NewRegistry(store.save)
	commit := func(s Signal) error {
		return r.Commit(t.Context(), s.ID, func(b *Book) { b.Put(s) })
	}
	for i := range 3 * maxEnded {
		if err := commit(Request{Kind: Resume, Sink: fmt.Sprint(i)}.New(noon).End(Done, noon, 0, "nothing waited")); err != nil {
			t.Fatal(err)
		}
	}
	if perWrite := store.written / store.writes; perWrite > 400 || len(store.stored) != 1+maxEnded {
		t.Errorf("a write has %d bytes, and stored are %d entries", perWrite, len(store.stored))
	}
	store.err = errors.New("the bus is away")
	lost := Request{Kind: Pause, Sink: "a"}.New(noon)
	if err := commit(lost); !errors.Is(err, store.err) {
		t.Fatal(err)
	}
	store.err = nil
	late := bookOf(0, lost).Signals[0]
	late.number = r.List()[len(r.List())-1].number
	entries, err := (&Book{Revision: store.book(t).Revision + 1, Signals: []Signal{late}}).encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.save(t.Context(), entries); err != nil { // the write that failed arrives all the same
		t.Fatal(err)
	}
	if err := r.SaveUnsaved(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := store.book(t); !reflect.DeepEqual(got.Signals, r.List()) {
		t.Errorf("stored is %+v", got.Signals[len(got.Signals)-1])
	}
}

// TestThousandsOfRefusalsAreAFewWrites because they change nothing. A single one is stored before it is answered.
func TestThousandsOfRefusalsAreAFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		r := NewRegistry(store.save)
		for i := range 1000 {
			asked := Request{ID: fmt.Sprint("id-", i), Kind: Pause, Sink: "mian"}
			s, err := r.Execute(t.Context(), asked, func(asked Request) (Signal, error) {
				return r.Refuse(t.Context(), asked.New(noon), "no sink \"mian\" is configured"), nil
			})
			if kept := store.book(t).Signals; err != nil || s.ID != asked.ID || s.State != Refused || len(kept) != 1 || kept[0].ID != "id-0" {
				t.Fatalf("%+v, %v; stored is %+v", s, err, kept)
			}
		}
		if all := r.List(); len(all) != maxUnchanged || store.writes != 1 {
			t.Errorf("%d are kept, with %d writes", len(all), store.writes)
		}
		if err := r.SaveUnsaved(t.Context()); err != nil || store.writes != 2 || len(store.stored) != 1+maxUnchanged {
			t.Errorf("%d writes, and stored are %d entries, %v", store.writes, len(store.stored), err)
		}
		load(t, r, bookOf(1))
		if got := store.book(t); !reflect.DeepEqual(got.Signals, r.List()) {
			t.Errorf("stored is %+v, and kept %+v", got.Signals, r.List())
		}
		time.Sleep(refusalInterval)
		store.err = errors.New("the bus is away")
		if s := r.Refuse(t.Context(), Request{Kind: Pause, Sink: "mian"}.New(noon), "there is none"); s.State != Refused || r.isSaved() {
			t.Errorf("while nothing can be stored: %+v", s)
		}
	})
}

// blockingHandler executes until it is let go, and counts.
type blockingHandler struct {
	stubHandler
	proceed chan struct{}
	now     *atomic.Int32
}

func (h blockingHandler) Submit(context.Context, Request) (Signal, error) {
	h.now.Add(1)
	<-h.proceed
	return h.signal, nil
}

// TestSoManyRequestsAreWorkedOnAtOnce and the others wait, unread. All get their answers.
func TestSoManyRequestsAreWorkedOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := blockingHandler{stubHandler{signal: Request{Kind: Pause, Sink: "a"}.New(noon)}, make(chan struct{}), &atomic.Int32{}}
		server := NewHTTPHandler(h)
		var read, answered atomic.Int32
		for range 3 * maxRequests {
			go func() {
				body := countingReader{strings.NewReader(`{"signal":"pause","sink":"a"}`), &read}
				w := httptest.NewRecorder()
				server.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path, body))
				if w.Code == http.StatusOK {
					answered.Add(1)
				}
			}()
		}
		synctest.Wait()
		if h.now.Load() != maxRequests || read.Load() != maxRequests {
			t.Errorf("%d are worked on, and %d bodies were read", h.now.Load(), read.Load())
		}
		close(h.proceed)
		synctest.Wait()
		if answered.Load() != 3*maxRequests {
			t.Errorf("%d have an answer", answered.Load())
		}
	})
}

// countingReader counts the bodies that are read to their end.
type countingReader struct {
	io.Reader
	n *atomic.Int32
}

func (r countingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if errors.Is(err, io.EOF) {
		r.n.Add(1)
	}
	return n, err
}

// TestAnIDIsOfOneRequest: every repetition gets its answer. Another request under it is a mistake.
func TestAnIDIsOfOneRequest(t *testing.T) {
	store := &memoryStore{}
	r := NewRegistry(store.save)
	executed := 0
	submit := func(r *Registry, asked Request) (Signal, error) {
		return r.Execute(t.Context(), asked, func(asked Request) (Signal, error) {
			executed++
			s := asked.New(noon).End(Done, noon, 1, "")
			return s, r.Commit(t.Context(), s.ID, func(b *Book) { b.Put(s) })
		})
	}
	asked := Request{ID: "8c1f0a52-3b7e-4a10-9c55-0242ac120002", Kind: DiscardDeadLetters, Sink: "a", Offsets: []uint64{1}}
	first, err := submit(r, asked)
	if err != nil || first.ID != asked.ID {
		t.Fatalf("%+v, %v", first, err)
	}
	restarted := NewRegistry(store.save)
	if err := restarted.Load(store.stored); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Registry{r, restarted} {
		again, err := submit(r, asked)
		if err != nil || executed != 1 || again.Ended != first.Ended || again.Count != 1 {
			t.Errorf("again: %+v, %v", again, err)
		}
		other := asked
		other.Offsets = []uint64{1, 2}
		var invalid *InvalidError
		if s, err := submit(r, other); !errors.As(err, &invalid) || !strings.Contains(err.Error(), asked.ID) || s.ID != "" || executed != 1 {
			t.Errorf("another request: %+v, %v", s, err)
		}
	}
}

// listenIn listens in a directory, and returns the error as text.
func listenIn(t *testing.T, dir string) (net.Listener, string) {
	t.Helper()
	l, err := Listen(dir)
	if err != nil {
		return nil, err.Error()
	}
	t.Cleanup(func() { l.Close() })
	return l, ""
}

func TestASocketIsReplacedOnlyIfNoProcessAnswers(t *testing.T) {
	dir := t.TempDir()
	l, text := listenIn(t, dir)
	if text != "" {
		t.Fatal(text)
	}
	if _, text := listenIn(t, dir); !strings.Contains(text, "answered by another process") {
		t.Errorf("beside a process that answers: %q", text)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as SIGKILL leaves it
	l.Close()
	if _, text := listenIn(t, dir); text != "" {
		t.Errorf("after a kill: %q", text)
	}
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, socketName), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, text := listenIn(t, other); !strings.Contains(text, "is no socket") {
		t.Errorf("in the place of a file: %q", text)
	}
}

func TestATooLongPathOfTheSocketIsNamedWithItsBound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, text := listenIn(t, dir); !strings.Contains(text, "at most 107 bytes") || !strings.Contains(text, dir) {
		t.Errorf("error %q", text)
	}
	if _, err := NewClient(dir); err == nil {
		t.Error("the client has no such error")
	}
}

// stubHandler answers each request in the same way.
type stubHandler struct {
	signal Signal
	err    error
}

func (h stubHandler) Submit(context.Context, Request) (Signal, error) { return h.signal, h.err }
func (h stubHandler) List() ([]Signal, error)                         { return []Signal{h.signal}, h.err }
func (h stubHandler) Letters(sink string, offset, after uint64) ([]json.RawMessage, error) {
	return []json.RawMessage{fmt.Appendf(nil, `{"of":"<%s>","offset":%d,"after":%d}`, sink, offset, after)}, h.err
}

func TestAnswersArriveAsTheyWereGiven(t *testing.T) {
	given := Request{Kind: Pause, Sink: "a", For: time.Minute}.New(noon)
	for name, h := range map[string]stubHandler{
		"stored":     {given, nil},
		"not stored": {given, errors.New("the journal is closed")},
		"standby":    {Signal{}, &NotActiveError{"this exporter is a standby"}},
	} {
		t.Run(name+" by the socket", func(t *testing.T) {
			dir := t.TempDir()
			l, text := listenIn(t, dir)
			if text != "" {
				t.Fatal(text)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
			client, err := NewClient(dir)
			if err != nil {
				t.Fatal(err)
			}
			checkAnswer(t, client, h)
			letters, err := client.Letters(t.Context(), "a&b", 7, 8)
			if answered := err == nil && len(letters) == 1 && string(letters[0]) == `{"of":"<a&b>","offset":7,"after":8}`; answered != (h.err == nil) {
				t.Errorf("dead letters: %s, %v", letters, err)
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			var unanswered *UnansweredError
			if _, err := client.List(t.Context()); !errors.As(err, &unanswered) {
				t.Errorf("after the end: %v", err)
			}
		})
		t.Run(name+" by the admin server", func(t *testing.T) {
			s := newGuardedServer(t, h)
			client, err := NewServerClient(s.url, s.file, false)
			if err != nil {
				t.Fatal(err)
			}
			checkAnswer(t, client, h)
			var denied *DeniedError
			if letters, err := client.Letters(t.Context(), "a", 0, 0); !errors.As(err, &denied) {
				t.Errorf("bodies of objects leave the machine: %s, %v", letters, err)
			}
		})
	}
}

// checkAnswer checks that a client returns what a handler has returned.
func checkAnswer(t *testing.T, client *Client, h stubHandler) {
	t.Helper()
	got, err := client.Submit(t.Context(), Request{Kind: Pause, Sink: "a"})
	if !reflect.DeepEqual(got, h.signal) || fmt.Sprint(err) != fmt.Sprint(h.err) {
		t.Errorf("answered %+v, %v", got, err)
	}
	var inactive *NotActiveError
	if errors.As(h.err, &inactive) != errors.As(err, &inactive) {
		t.Errorf("the error is a %T", err)
	}
	all, err := client.List(t.Context())
	if fmt.Sprint(err) != fmt.Sprint(h.err) || errors.As(h.err, &inactive) != errors.As(err, &inactive) {
		t.Errorf("the list is %+v, %v", all, err)
	}
}
