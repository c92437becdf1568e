package history

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// restarted returns a sink that begins with the state of one that is closed.
func restarted(t *testing.T, cfg Config, closed *Sink) *Sink {
	t.Helper()
	s := newSink(t, cfg)
	mustRestore(t, s, closed.State(0))
	return s
}

func mustRestore(t *testing.T, s *Sink, state []byte) {
	t.Helper()
	must(t, s.RestoreState(state, 9, func(context.Context) error { return nil }))
}

// TestAHistoryThatLostWhatWasAcknowledgedIsNamed before anything is written, by an idle exporter too, until the caller knows
// of it; then the folder is begun anew. A folder that has everything is none.
func TestAHistoryThatLostWhatWasAcknowledgedIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(t *testing.T, dir, copied string) (now string)
		want string
	}{
		"kept":    {func(_ *testing.T, dir, _ string) string { return dir }, ""},
		"removed": {func(t *testing.T, dir, _ string) string { must(t, os.RemoveAll(dir)); return dir }, "was removed"},
		"another": {func(_ *testing.T, dir, _ string) string { return dir + "-of-now" }, "names another one"},
		"older copy": {func(t *testing.T, dir, copied string) string {
			must(t, os.RemoveAll(dir))
			must(t, os.CopyFS(dir, os.DirFS(copied)))
			return dir
		}, "up to row 5"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, copied := filepath.Join(t.TempDir(), "history"), t.TempDir()
			s := newSink(t, Config{Dir: dir})
			mustPublish(t, s, newMessages(1, 2))
			must(t, os.CopyFS(copied, os.DirFS(dir)))
			mustPublish(t, s, newMessages(3, 5))
			mustClose(t, s)
			now := c.lose(t, dir, copied)
			s = restarted(t, Config{Dir: now}, s)
			var lost *sinks.LostError
			if c.want == "" {
				must(t, s.Ping(t.Context()))
			} else {
				for _, err := range []error{s.Ping(t.Context()), second(s.Publish(t.Context(), onlyLane, newMessages(6, 6)))} {
					if !errors.As(err, &lost) || !lost.Renew || lost.From != 0 || !strings.Contains(lost.Reason, c.want) {
						t.Errorf("%v", err)
					}
				}
				state := s.State(0) // a crash finds it again
				mustRestore(t, s, state)
				must(t, s.Ping(t.Context()))
			}
			mustPublish(t, s, newMessages(6, 6))
			mustClose(t, s)
			s = restarted(t, Config{Dir: now}, s)
			must(t, s.Ping(t.Context()))
			mustClose(t, s)
		})
	}
}

// TestAFolderThatIsRemovedWhileItIsWrittenIsBegunAnew without a restart.
func TestAFolderThatIsRemovedWhileItIsWrittenIsBegunAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	s := newSink(t, Config{Dir: dir})
	mustPublish(t, s, newMessages(1, 2))
	must(t, os.RemoveAll(dir))
	var lost *sinks.LostError
	for range 2 { // the first one finds that it cannot write
		if _, err := s.Publish(t.Context(), onlyLane, newMessages(3, 3)); errors.As(err, &lost) {
			break
		}
	}
	if lost == nil {
		t.Fatal("the loss is not named")
	}
	mustRestore(t, s, s.State(0))
	mustPublish(t, s, newMessages(1, 3))
	mustClose(t, s)
	wantRows(t, Config{Dir: dir}, 3)
}

func second(_ int, err error) error { return err }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// versionsStored returns the versions of the rows, in the order of their writing.
func versionsStored(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	for _, r := range readRows(t, dir) {
		all = append(all, r.ResourceVersion)
	}
	return strings.Join(all, " ")
}

// publishMerged publishes messages one by one, and waits until their files are merged; then merging ends.
func publishMerged(t *testing.T, s *Sink, dir string, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		mustPublish(t, s, newMessages(i, i))
	}
	awaitMerged(t, s, dir)
	s.stop()
	s.tending.Wait()
}

// TestAnOlderCopyThatIsPutBackGetsWhatItLacks and nothing twice, though its files are merged, whether the exporter runs
// meanwhile or not.
func TestAnOlderCopyThatIsPutBackGetsWhatItLacks(t *testing.T) {
	for _, running := range []bool{false, true} {
		dir, copied := filepath.Join(t.TempDir(), "history"), t.TempDir()
		s := newSink(t, Config{Dir: dir})
		publishMerged(t, s, dir, 1, 20)
		must(t, os.CopyFS(copied, os.DirFS(dir)))
		mustPublish(t, s, newMessages(21, 30))
		if !running {
			mustClose(t, s)
		}
		must(t, os.RemoveAll(dir))
		must(t, os.CopyFS(dir, os.DirFS(copied)))
		if !running {
			s = restarted(t, Config{Dir: dir}, s)
		}
		var lost *sinks.LostError
		for range 2 { // the first one finds that it cannot write
			if _, err := s.Publish(t.Context(), onlyLane, newMessages(31, 31)); errors.As(err, &lost) {
				break
			}
		}
		if lost == nil {
			t.Fatal("the loss is not named")
		}
		mustRestore(t, s, s.State(0))
		again := newMessages(5, 31) // what the journal keeps, with a first list
		again[3].Change.Type, again[3].Change.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: "s"}
		mustPublish(t, s, again[:3])
		mustPublish(t, s, again[3:])
		mustClose(t, s)
		want := "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 8 21 22 23 24 25 26 27 28 29 30 31"
		if got := versionsStored(t, dir); got != want {
			t.Errorf("running %t: rows %s", running, got)
		}
	}
}

// TestAHistoryThatComesBackHasWhatTheOtherWriterStored once: B goes on where A was, merges, and A comes again with what it
// has seen meanwhile.
func TestAHistoryThatComesBackHasWhatTheOtherWriterStored(t *testing.T) {
	dir := t.TempDir()
	a := newSink(t, Config{Dir: dir})
	publishMerged(t, a, dir, 1, 10)
	mustPublish(t, a, newMessages(11, 12)) // stored, and the acknowledgement is lost
	state := a.State(0)
	mustPublish(t, a, newMessages(13, 14))
	mustClose(t, a)
	b := newSink(t, Config{Dir: dir})
	mustRestore(t, b, nil)
	publishMerged(t, b, dir, 12, 30)
	mustClose(t, b)
	a = newSink(t, Config{Dir: dir})
	mustRestore(t, a, state)
	mustPublish(t, a, newMessages(11, 20))
	mustPublish(t, a, newMessages(21, 33))
	mustClose(t, a)
	var want []string
	for i := 1; i <= 33; i++ {
		want = append(want, strconv.Itoa(i))
	}
	if got := versionsStored(t, dir); got != strings.Join(want, " ") {
		t.Errorf("rows %s", got)
	}
}
