package history

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func newSink(t testing.TB, cfg Config) *Sink {
	t.Helper()
	s, err := New(cfg)
	must(t, err)
	s.every, s.tends = time.Millisecond, 50*time.Millisecond
	return s
}

// readRows returns all rows of a history in a folder, in the order of their writing.
func readRows(t testing.TB, dir string) (all []history.Row) {
	t.Helper()
	return readStore(t, history.Folder(dir))
}

func readStore(t testing.TB, in history.Store) (all []history.Row) {
	t.Helper()
	s, err := history.Open(in)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(t, err)
	defer s.Close()
	for row, err := range s.Rows(t.Context(), history.Query{}) {
		must(t, err)
		all = append(all, *row)
	}
	slices.SortFunc(all, func(a, b history.Row) int { return int(a.Sequence - b.Sequence) })
	return all
}

func wantRows(t testing.TB, cfg Config, want int) {
	t.Helper()
	in, err := cfg.Store()
	must(t, err)
	if got := len(readStore(t, in)); got != want {
		t.Errorf("%d rows, want %d", got, want)
	}
}

// describe returns what a row has of a change, as text.
func describe(r *history.Row) []byte {
	r.Sequence = 0
	r.ChangedAt, r.NotBefore, r.ObservedAt = r.ChangedAt.UTC(), r.NotBefore.UTC(), r.ObservedAt.UTC().Truncate(time.Microsecond)
	if r.Changed == nil {
		r.Changed = []history.Difference{}
	}
	return fmt.Appendf(nil, "%+v", *r)
}

func TestTheSinkKeepsTheContract(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "history")}
	sinktest.Run(t, newHarness(cfg))
}

func newHarness(cfg Config) sinktest.Harness {
	return sinktest.Harness{
		New: func(t testing.TB) sinks.Sink { return newSink(t, cfg) },
		Read: func(t testing.TB) (all []sinktest.Delivered) {
			in, err := cfg.Store()
			must(t, err)
			for _, r := range readStore(t, in) {
				uid := r.UID
				if r.Type == string(event.Gap) {
					uid = r.Resource + "@" + r.GapFrom
				}
				id := strings.Join([]string{r.Cluster, uid, r.ResourceVersion, r.Type}, "/")
				all = append(all, sinktest.Delivered{ID: id, Value: describe(&r)})
			}
			return all
		},
		Value: func(c *event.Change) []byte {
			r := newRow(c)
			return describe(&r)
		},
		ExactRetry: true, ExactRestart: true,
	}
}

func newMessages(from, to int) (batch []sinks.Message) {
	for i := from; i <= to; i++ {
		batch = append(batch, sinks.Message{Offset: uint64(i), Change: &event.Change{
			Type: event.Updated, Cluster: "c", UID: "u", Namespace: "shop", Name: "web", ResourceVersion: fmt.Sprint(i),
			Resource:   event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
			ObservedAt: time.Date(2026, 11, 28, 12, 0, i, 0, time.UTC), After: []byte(`{"a":1}`)}})
	}
	return batch
}

func mustPublish(t *testing.T, s *Sink, batch []sinks.Message) {
	t.Helper()
	if n, err := s.Publish(t.Context(), onlyLane, batch); n != len(batch) || err != nil {
		t.Fatalf("publish: %d of %d, %v", n, len(batch), err)
	}
}

func mustClose(t *testing.T, s *Sink) {
	t.Helper()
	must(t, s.Close(t.Context()))
}

// TestARowHasWhatIsKnownOfAChange: the names of the columns are those of the contract, see docs/history.md.
func TestARowHasWhatIsKnownOfAChange(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 1000, time.UTC)
	c := newMessages(1, 1)[0].Change
	c.ChangedAt = event.ChangeTime{At: at, NotBefore: at.Add(-time.Second), Source: event.TimeFromAudit}
	c.Actor = &event.Actor{Manager: "kubectl"}
	c.Changed = []byte(`[{"path":"/spec/replicas","from":1,"to":2},{"path":"/metadata/labels/a~1\"b","to":{"x":[1]}},{"path":"/x","from":null}]`)
	dir := t.TempDir()
	s := newSink(t, Config{Dir: dir})
	gap := &event.Change{Type: event.Gap, Cluster: "c", Resource: c.Resource, ObservedAt: at, Gap: &event.GapInfo{From: "1", To: "9", Reason: "gone"}}
	author := &event.Change{Type: event.Attributed, Cluster: "c", Resource: c.Resource, Name: "web", UID: "u", ResourceVersion: "1", ObservedAt: at,
		Attribution: &event.Attribution{Of: c.ID(), By: event.Identity{User: "alice"}, Certainty: event.Exact}}
	paths := newMessages(2, 2)[0].Change
	paths.Changed = []byte(`["/spec","/a\"b"]`)
	left := newMessages(3, 3)[0].Change
	left.Type, left.Left, left.After = event.Deleted, true, nil
	mustPublish(t, s, []sinks.Message{{Offset: 1, Change: c}, {Offset: 2, Change: gap}, {Offset: 3, Change: author}, {Offset: 4, Change: paths},
		{Offset: 5, Change: left}, {Offset: 6, Change: &event.Change{Type: event.Watermark, Watermark: &event.WatermarkInfo{}}}})
	mustClose(t, s)
	rows := readRows(t, dir)
	if len(rows) != 5 || rows[4].Type != history.Left {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	want := []history.Difference{{Path: "/spec/replicas", From: "1", To: "2"}, {Path: `/metadata/labels/a~1"b`, To: `{"x":[1]}`}, {Path: "/x", From: "null"}}
	if r := rows[0]; !slices.Equal(r.Changed, want) || r.Manager != "kubectl" || !r.ChangedAt.Equal(at) || r.TimeSource != "audit" ||
		!r.NotBefore.Equal(at.Add(-time.Second)) || r.Object != `{"a":1}` || r.Group != "apps" || r.Kind != "Deployment" {
		t.Errorf("the change is %+v", r)
	}
	if r := rows[1]; r.GapFrom != "1" || r.GapTo != "9" || r.GapReason != "gone" {
		t.Errorf("the gap is %+v", r)
	}
	if r := rows[2]; r.User != "alice" || r.Attribution != "exact" || r.UID != "u" || r.ResourceVersion != "1" {
		t.Errorf("the author is %+v", r)
	}
	if r := rows[3]; !slices.Equal(r.Changed, []history.Difference{{Path: "/spec"}, {Path: `/a"b`}}) {
		t.Errorf("paths are %+v", r)
	}
}

// TestADiskThatCannotBeWrittenToIsSaid, with the remedy, and delivery goes on as soon as it can.
func TestADiskThatCannotBeWrittenToIsSaid(t *testing.T) {
	place := t.TempDir()
	dir := filepath.Join(place, "history")
	must(t, os.WriteFile(dir, nil, 0o600))
	s := newSink(t, Config{Dir: dir})
	n, err := s.Publish(t.Context(), onlyLane, newMessages(1, 1))
	var unavailable *sinks.UnavailableError
	if n != 0 || !errors.As(err, &unavailable) || unavailable.Code != condition.SinkMisconfigured || !strings.Contains(err.Error(), dir) {
		t.Errorf("a file in its place: %d, %v", n, err)
	}
	must(t, os.Remove(dir))
	mustPublish(t, s, newMessages(1, 2))
	other := newSink(t, Config{Dir: dir})
	if _, err := other.Publish(t.Context(), onlyLane, newMessages(1, 1)); !errors.As(err, &unavailable) || !strings.Contains(unavailable.Remedy, "of its own") {
		t.Errorf("a second exporter: %v", err)
	}
	mustClose(t, other)
	mustClose(t, s)
	wantRows(t, Config{Dir: dir}, 2)
}

// countUnmerged returns how many files of a history are as they were written.
func countUnmerged(t *testing.T, dir string) (n int) {
	t.Helper()
	m, err := history.ReadManifest(history.Folder(dir))
	must(t, err)
	for _, f := range m.Files {
		if f.Level == 0 {
			n++
		}
	}
	return n
}

// awaitMerged waits until all files of a history but one have been merged, into few or many: that depends on how fast they
// came.
func awaitMerged(t *testing.T, s *Sink, dir string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); countUnmerged(t, dir) > 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d files are not merged: %v", countUnmerged(t, dir), s.Conditions())
		}
	}
}
