package audit_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
)

// logReader is an audit log file with its reader. The stored positions outlive the reader, as in a journal.
type logReader struct {
	t    *testing.T
	path string

	mu         sync.Mutex
	positions  map[string]string
	ids        []string
	lost       []string
	beforeLoss func()        // called before a loss is recorded; may be nil
	news       chan struct{} // capacity 1
}

func newLogReader(t *testing.T) *logReader {
	return &logReader{t: t, path: filepath.Join(t.TempDir(), "audit.log"), positions: map[string]string{}, news: make(chan struct{}, 1)}
}

func (r *logReader) storeEvents(_ context.Context, _ string, events []audit.Event, place, position string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		r.ids = append(r.ids, e.ID)
	}
	if place != "" {
		r.positions[place] = position
	}
	r.signalNews()
	return nil
}

func (r *logReader) storedPosition(name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.positions[name], nil
}

func (r *logReader) recordLoss(_ context.Context, _ time.Time, reason string) error {
	if r.beforeLoss != nil {
		r.beforeLoss()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = append(r.lost, reason)
	r.signalNews()
	return nil
}

func (r *logReader) signalNews() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// newFile returns a new reader of the file.
func (r *logReader) newFile() *audit.File {
	return audit.NewFile(r.path, audit.Options{StoreEvents: r.storeEvents, StoredPosition: r.storedPosition, RecordLoss: r.recordLoss, Logger: slog.New(slog.DiscardHandler)})
}

// startReader follows the file until the returned function is called.
func (r *logReader) startReader() (stop func()) {
	r.t.Helper()
	return r.runReader(r.newFile())
}

func (r *logReader) runReader(f *audit.File) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	return func() { cancel(); <-done }
}

// eventLine returns a line of a log.
func eventLine(id string) string {
	return fmt.Sprintf(`{"apiVersion":"audit.k8s.io/v1","auditID":%q,"stage":"ResponseComplete"}`+"\n", id)
}

// addEvents appends events with these IDs to the file.
func (r *logReader) addEvents(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		r.appendText(eventLine(id))
	}
}

// rotateLog renames the file as an API server does.
func (r *logReader) rotateLog(when string) {
	r.t.Helper()
	if err := os.Rename(r.path, filepath.Join(filepath.Dir(r.path), "audit-"+when+".log")); err != nil {
		r.t.Fatal(err)
	}
}

func (r *logReader) awaitEvents(ids ...string) {
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

// startedLog returns a log with a stored position. Its reader has stopped.
func startedLog(t *testing.T) *logReader {
	r := newLogReader(t)
	r.addEvents("old")
	stop := r.startReader()
	r.mu.Lock()
	for len(r.ids) == 0 { // the reader skips events from before it has opened the file
		r.mu.Unlock()
		r.addEvents("first")
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
	again := r.startReader() // the rest of what was added
	r.addEvents("last")
	for deadline := time.After(time.Minute); !r.hasEvent("last"); {
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

func (r *logReader) hasEvent(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.ids, id)
}

func TestRotatedLogIsFollowed(t *testing.T) {
	r := startedLog(t)
	defer r.startReader()()
	r.addEvents("a", "b")
	r.rotateLog("2026-01-01T00-00-00.000")
	r.addEvents("c")
	r.awaitEvents("a", "b", "c")
	if len(r.lost) > 0 {
		t.Errorf("lost: %v", r.lost)
	}
}

func TestConditionOfAFileHasItsPathWithOneSlash(t *testing.T) {
	r := newLogReader(t) // its path is absolute
	if status, _ := r.newFile().Status(); status.Name() != "audit"+r.path {
		t.Errorf("the component is %q", status.Name())
	}
}

func TestReaderResumesAtStoredPosition(t *testing.T) {
	r := startedLog(t)
	r.addEvents("a")
	stop := r.startReader()
	r.awaitEvents("a")
	stop()
	r.addEvents("b")
	r.rotateLog("2026-01-01T00-00-00.000") // without a reader
	r.addEvents("c")
	defer r.startReader()()
	r.awaitEvents("a", "b", "c")
	if len(r.lost) > 0 {
		t.Errorf("lost: %v", r.lost)
	}
}

func TestRemovedLogIsReportedAsLoss(t *testing.T) {
	r := startedLog(t)
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	r.addEvents("c")
	defer r.startReader()()
	r.awaitEvents("c")
	if len(r.lost) != 1 {
		t.Errorf("lost: %v", r.lost)
	}
}

func TestPartialLineIsReadWhenComplete(t *testing.T) {
	r := startedLog(t)
	defer r.startReader()()
	r.appendText(`{"auditID":"a","stage":`)
	r.appendText(`"ResponseComplete"}` + "\n")
	r.addEvents("b")
	r.awaitEvents("a", "b")
}

// TestFileInEnvelopeOfCloudIsRead follows a file that a forwarder writes, with records of three forms.
func TestFileInEnvelopeOfCloudIsRead(t *testing.T) {
	r := startedLog(t)
	defer r.startReader()()
	event := strings.TrimSpace(eventLine("azure"))
	r.appendText(`{"records":[{"category":"kube-audit","properties":{"log":` + strconv.Quote(event) + "}}]}\n")
	event = strings.TrimSpace(eventLine("cloudwatch"))
	r.appendText(`{"messageType":"DATA_MESSAGE","logStream":"kube-apiserver-audit-1","logEvents":[{"timestamp":1,"message":` + strconv.Quote(event) + "}]}\n")
	r.addEvents("plain")
	r.awaitEvents("azure", "cloudwatch", "plain")
}
