package audit_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
)

// reading is an audit log file and who follows it. Its places outlive the reader, as a journal does.
type reading struct {
	t    *testing.T
	path string

	mu     sync.Mutex
	places map[string]string
	ids    []string
	lost   []string
	losing func()        // called, if it is not nil, when a loss is said
	news   chan struct{} // capacity 1
}

func newReading(t *testing.T) *reading {
	return &reading{t: t, path: filepath.Join(t.TempDir(), "audit.log"), places: map[string]string{}, news: make(chan struct{}, 1)}
}

func (r *reading) Take(_ context.Context, _ string, events []audit.Event, place, position string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		r.ids = append(r.ids, e.ID)
	}
	if place != "" {
		r.places[place] = position
	}
	r.tell()
	return nil
}

func (r *reading) place(name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.places[name], nil
}

func (r *reading) lose(_ context.Context, _ time.Time, reason string) error {
	if r.losing != nil {
		r.losing()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = append(r.lost, reason)
	r.tell()
	return nil
}

func (r *reading) tell() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// file is a reader of the file.
func (r *reading) file() *audit.File {
	return audit.NewFile(r.path, audit.Options{Take: r.Take, Place: r.place, Lost: r.lose, Logger: slog.New(slog.DiscardHandler)})
}

// run follows the file until the returned function is called.
func (r *reading) run() (stop func()) {
	r.t.Helper()
	return r.runFile(r.file())
}

func (r *reading) runFile(f *audit.File) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	return func() { cancel(); <-done }
}

// event is a line of a log.
func event(id string) string {
	return fmt.Sprintf(`{"apiVersion":"audit.k8s.io/v1","auditID":%q,"stage":"ResponseComplete"}`+"\n", id)
}

// add appends events with these IDs to the file.
func (r *reading) add(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		r.append(event(id))
	}
}

// rotate renames the file as an API server does.
func (r *reading) rotate(when string) {
	r.t.Helper()
	if err := os.Rename(r.path, filepath.Join(filepath.Dir(r.path), "audit-"+when+".log")); err != nil {
		r.t.Fatal(err)
	}
}

func (r *reading) await(ids ...string) {
	r.t.Helper()
	deadline := time.After(time.Minute)
	for {
		r.mu.Lock()
		got := slices.Clone(r.ids)
		r.mu.Unlock()
		if slices.Equal(got, ids) {
			return
		}
		select {
		case <-r.news:
		case <-deadline:
			r.t.Fatalf("read %v, want %v", got, ids)
		}
	}
}

// begun is a log whose first event was read, by a reader that has stopped.
func begun(t *testing.T) *reading {
	r := newReading(t)
	r.add("old")
	stop := r.run()
	r.mu.Lock()
	for len(r.ids) == 0 { // what is written before the reader has opened the file is from before anybody asked
		r.mu.Unlock()
		r.add("first")
		select {
		case <-r.news:
		case <-time.After(50 * time.Millisecond):
		}
		r.mu.Lock()
	}
	r.mu.Unlock()
	stop()
	if slices.Contains(r.ids, "old") {
		t.Error("what was written before the first start is read")
	}
	again := r.run() // the rest of what was added meanwhile
	r.add("last")
	for deadline := time.After(time.Minute); !r.has("last"); {
		select {
		case <-r.news:
		case <-deadline:
			t.Fatal("the last event is not read")
		}
	}
	again()
	r.ids = nil
	return r
}

func (r *reading) has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.ids, id)
}

func TestALogIsFollowedThroughRotation(t *testing.T) {
	r := begun(t)
	defer r.run()()
	r.add("a", "b")
	r.rotate("2026-01-01T00-00-00.000")
	r.add("c")
	r.await("a", "b", "c")
	if len(r.lost) > 0 {
		t.Errorf("lost: %v", r.lost)
	}
}

func TestAReaderGoesOnWhereItStopped(t *testing.T) {
	r := begun(t)
	r.add("a")
	stop := r.run()
	r.await("a")
	stop()
	r.add("b")
	r.rotate("2026-01-01T00-00-00.000") // while nobody reads
	r.add("c")
	defer r.run()()
	r.await("a", "b", "c")
	if len(r.lost) > 0 {
		t.Errorf("lost: %v", r.lost)
	}
}

func TestALogThatIsGoneIsSaidToBeLost(t *testing.T) {
	r := begun(t)
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	r.add("c")
	defer r.run()()
	r.await("c")
	if len(r.lost) != 1 {
		t.Errorf("lost: %v", r.lost)
	}
}

func TestAHalfWrittenLineIsReadWhenItIsWhole(t *testing.T) {
	r := begun(t)
	defer r.run()()
	r.append(`{"auditID":"a","stage":`)
	r.append(`"ResponseComplete"}` + "\n")
	r.add("b")
	r.await("a", "b")
}
