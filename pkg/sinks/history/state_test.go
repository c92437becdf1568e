package history

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	if err := s.RestoreState(state, 9, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
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
		"another": {func(_ *testing.T, dir, _ string) string { return dir + "-of-now" }, "another folder"},
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
	if got := len(readRows(t, dir)); got != 3 {
		t.Errorf("%d rows", got)
	}
}

func second(_ int, err error) error { return err }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
