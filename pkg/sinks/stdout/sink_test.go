package stdout

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestFileKeepsTheContract(t *testing.T) {
	for _, f := range []format.Format{format.JSON, format.CloudEventsStructured} {
		t.Run(f.String(), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "changes.jsonl")
			sinktest.Run(t, sinktest.Harness{
				New: func(t testing.TB) sinks.Sink {
					s, err := New(Config{Path: path}, f)
					if err != nil {
						t.Fatal(err)
					}
					return s
				},
				Read:  func(t testing.TB) []sinktest.Delivered { return readDelivered(t, path) },
				Value: func(c *event.Change) []byte { return f.AppendValue(nil, c) },
			})
		})
	}
}

func TestFormatsThatNeedHeadersAreRejected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes.jsonl")
	for _, f := range []format.Format{format.CloudEvents, format.Debezium, format.Upsert} {
		if _, err := New(Config{Path: path}, f); err == nil || !strings.Contains(err.Error(), "use json or cloudevents-structured") {
			t.Errorf("%v went to a file (%v)", f, err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was opened nevertheless (%v)", err)
	}
}

// readDelivered reads a file as a consumer does.
func readDelivered(t testing.TB, path string) []sinktest.Delivered {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(content) > 0 && content[len(content)-1] != '\n' {
		t.Errorf("%s does not end with a newline", path)
	}
	var all []sinktest.Delivered
	for line := range bytes.Lines(content) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		var id struct{ ID string }
		if err := json.Unmarshal(line, &id); err != nil {
			t.Errorf("%s: %v in the line %.200q", path, err, line)
		}
		all = append(all, sinktest.Delivered{ID: id.ID, Value: line})
	}
	return all
}

func newBatch(names ...string) []sinks.Message {
	var messages []sinks.Message
	for i, name := range names {
		messages = append(messages, sinks.Message{Offset: uint64(i + 1), Change: &event.Change{
			Type: event.Added, Cluster: "c", UID: name, Name: name, After: []byte(`{"a":1}`)}})
	}
	return messages
}

func mustPublish(t *testing.T, s *Sink, names ...string) {
	t.Helper()
	if n, err := s.Publish(t.Context(), onlyLane, newBatch(names...)); n != len(names) || err != nil {
		t.Fatalf("publish: %d of %d, %v", n, len(names), err)
	}
}

func newSink(t *testing.T, path string) *Sink {
	t.Helper()
	s, err := New(Config{Path: path}, format.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newPipeSink returns a sink that writes to a pipe, whose ends the test closes.
func newPipeSink(t *testing.T) (r, w *os.File, s *Sink) {
	t.Helper()
	r, w, err := os.Pipe()
	if err == nil {
		s, err = newOn(w, format.JSON)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r, w, s
}

func closeSink(t *testing.T, s *Sink) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func joinIDs(all []sinktest.Delivered) string {
	var list []string
	for _, d := range all {
		list = append(list, d.ID)
	}
	return strings.Join(list, " ")
}

func TestATornLastLineIsTruncatedAtOpen(t *testing.T) {
	long := strings.Repeat("x", 200_000) // longer than a block that is searched for the newline
	for name, test := range map[string]struct{ content, want string }{
		"torn":      {`{"id":"whole"}` + "\n" + `{"id":"to`, "whole c/new//added"},
		"long":      {`{"id":"whole"}` + "\n" + long, "whole c/new//added"},
		"only torn": {`{"id":"to`, "c/new//added"},
		"whole":     {`{"id":"whole"}` + "\n", "whole c/new//added"},
		"empty":     {"", "c/new//added"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			s := newSink(t, path)
			mustPublish(t, s, "new")
			closeSink(t, s)
			if got := joinIDs(readDelivered(t, path)); got != test.want {
				t.Errorf("the file holds %s, want %s", got, test.want)
			}
		})
	}
}

func TestAFileIsForItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	closeSink(t, newSink(t, path))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o, want 600", mode)
	}
}

func TestAFailedWriteIsTruncatedBeforeTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	s := newSink(t, path)
	mustPublish(t, s, "one")
	if _, err := s.out.WriteString(`{"id":"half of tw`); err != nil { // as a full disk leaves it
		t.Fatal(err)
	}
	s.torn = true
	mustPublish(t, s, "two")
	closeSink(t, s)
	if got := joinIDs(readDelivered(t, path)); got != "c/one//added c/two//added" {
		t.Errorf("the file holds %s", got)
	}
}

// newLargeBatch returns a batch of several writes.
func newLargeBatch(messages int) []sinks.Message {
	var names []string
	for i := range messages {
		names = append(names, fmt.Sprint(i))
	}
	large := newBatch(names...)
	for _, m := range large {
		m.Change.After = append(append([]byte(`"`), bytes.Repeat([]byte("x"), maxWriteBytes/4)...), '"')
	}
	return large
}

func TestABatchOfManyWritesIsAtomicInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	s := newSink(t, path)
	mustPublish(t, s, "first")
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var free syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &free); err != nil {
		t.Fatal(err)
	}
	limit := func(l syscall.Rlimit) {
		t.Helper()
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(free)

	limit(syscall.Rlimit{Cur: 2 * maxWriteBytes, Max: free.Max})
	large := newLargeBatch(12)
	var unavailable *sinks.UnavailableError
	if n, err := s.Publish(t.Context(), onlyLane, large); n != 0 || !errors.As(err, &unavailable) || !strings.Contains(err.Error(), path) {
		t.Fatalf("publish into a file that may not grow: %d, %v; want 0 and an UnavailableError that names it", n, err)
	}
	if got := joinIDs(readDelivered(t, path)); got != "c/first//added" {
		t.Errorf("after the failure the file holds %s", got)
	}
	limit(free)
	if n, err := s.Publish(t.Context(), onlyLane, large); n != len(large) || err != nil {
		t.Fatalf("publish again: %d, %v", n, err)
	}
	if most := cap(s.buf); most > 2*maxWriteBytes {
		t.Errorf("a batch of %d bytes was gathered in a buffer of %d", 12*maxWriteBytes/4, most)
	}
	closeSink(t, s)
	if got := readDelivered(t, path); len(got) != 13 {
		t.Errorf("the file holds %s", joinIDs(got))
	}
}

func TestLinesWrittenToABrokenPipeCount(t *testing.T) {
	r, w, s := newPipeSink(t)
	defer w.Close()
	const first = 4 // messages in the first write
	read := make(chan error, 1)
	go func() {
		lines := bufio.NewReader(r)
		var err error
		for range first {
			_, e := lines.ReadString('\n')
			err = errors.Join(err, e)
		}
		read <- errors.Join(err, r.Close())
	}()
	n, err := s.Publish(t.Context(), onlyLane, newLargeBatch(12))
	var unavailable *sinks.UnavailableError
	if n != first || !errors.As(err, &unavailable) {
		t.Errorf("got %d, %v; want %d and an UnavailableError", n, err, first)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
}

func TestPublishReturnsWhenTheReaderOfAPipeIsSlow(t *testing.T) {
	r, w, s := newPipeSink(t)
	defer r.Close()
	defer w.Close()
	large := newBatch("large")
	large[0].Change.After = append(append([]byte(`"`), bytes.Repeat([]byte("x"), 1<<20)...), '"') // more than a pipe holds

	ctx, cancel := context.WithCancel(t.Context())
	stop := make(chan struct{})
	go func() { defer close(stop); cancel() }()
	if n, err := s.Publish(ctx, onlyLane, large); n != 0 || !errors.Is(err, context.Canceled) {
		t.Fatalf("publish into a full pipe: %d, %v", n, err)
	}
	<-stop

	lines := make(chan int, 1)
	go func() {
		var all bytes.Buffer
		_, _ = all.ReadFrom(r) // ends when w is closed
		lines <- bytes.Count(all.Bytes(), []byte("\n"))
	}()
	mustPublish(t, s, "small")
	closeSink(t, s)
	w.Close()
	if n := <-lines; n != 1 && n != 2 { // one if the first Publish saw the end of ctx before it wrote anything
		t.Errorf("the reader got %d lines", n)
	}
}

func TestABrokenLineInAPipeSpoilsNoOther(t *testing.T) {
	r, w, s := newPipeSink(t)
	defer r.Close()
	if _, err := w.WriteString(`{"id":"half`); err != nil {
		t.Fatal(err)
	}
	s.torn = true
	mustPublish(t, s, "one")
	mustPublish(t, s, "two")
	w.Close()
	var all bytes.Buffer
	if _, err := all.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(all.String(), "\n")
	if len(lines) != 4 || lines[0] != `{"id":"half` || !json.Valid([]byte(lines[1])) || !json.Valid([]byte(lines[2])) {
		t.Errorf("the reader got %q", lines)
	}
}

func TestADirectoryIsRejectedWithARemedy(t *testing.T) {
	const want = `stdout.path: "logs/" is a directory; name a file in it`
	if err := (Config{Path: "logs/"}).Validate(); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if _, err := New(Config{Path: t.TempDir()}, format.JSON); err == nil || !strings.Contains(err.Error(), "stdout.path") {
		t.Errorf("a directory was opened: %v", err)
	}
}

// TestWhatIsPutInThePlaceOfTheFileIsNamed: a disk with space is not blamed, and a FIFO takes nothing.
func TestWhatIsPutInThePlaceOfTheFileIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		put  func(path string) error
		code condition.Code
	}{
		"a directory":  {func(path string) error { return os.Mkdir(path, 0o700) }, condition.SinkMisconfigured},
		"a FIFO":       {func(path string) error { return syscall.Mkfifo(path, 0o600) }, condition.SinkMisconfigured},
		"no directory": {func(path string) error { return os.RemoveAll(filepath.Dir(path)) }, condition.SinkMisconfigured},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "in", "out")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			s := newSink(t, path)
			mustPublish(t, s, "one")
			if err := errors.Join(os.Remove(path), test.put(path)); err != nil {
				t.Fatal(err)
			}
			n, err := s.Publish(t.Context(), onlyLane, []sinks.Message{{Offset: 2, Change: &event.Change{Name: "two"}}})
			if p := condition.ProblemOf(errors.Join(err), ""); n != 0 || p.Code != test.code || !strings.Contains(p.Remedy, "stdout.path") {
				t.Errorf("published %d: %+v", n, p)
			}
		})
	}
}

func TestLinesGoToANewFileAfterARename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	s := newSink(t, path)
	mustPublish(t, s, "one", "two")
	for _, away := range []func() error{
		func() error { return os.Rename(path, path+".1") },
		func() error { return os.Remove(path) },
		func() error { return errors.Join(os.Rename(path, path+".2"), os.WriteFile(path, nil, 0o600)) }, // as logrotate's create does
	} {
		if err := away(); err != nil {
			t.Fatal(err)
		}
		mustPublish(t, s, "three")
		if got := countLines(t, path); got != 1 {
			t.Errorf("the new file has %d lines", got)
		}
	}
	if got := countLines(t, path+".1"); got != 2 {
		t.Errorf("the renamed file has %d lines", got)
	}
}

func TestATruncatedFileIsContinuedAtItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	s := newSink(t, path)
	mustPublish(t, s, "one", "two")
	for range 3 {
		if err := os.Truncate(path, 0); err != nil { // copytruncate
			t.Fatal(err)
		}
		mustPublish(t, s, "three")
		s.torn = true // as after a failed write
		mustPublish(t, s, "four")
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(content, 0) >= 0 || bytes.Count(content, []byte("\n")) != 2 {
			t.Errorf("the file holds %q", content)
		}
	}
}

func TestAForeignFileIsRejectedAndNotModified(t *testing.T) {
	for _, foreign := range []string{"127.0.0.1 localhost\n::1", "{\"level\":\"info\"}\n{\"lev", "no newline", "\n", "[1]\n"} {
		path := filepath.Join(t.TempDir(), "foreign")
		if err := os.WriteFile(path, []byte(foreign), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Config{Path: path}, format.JSON)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "use another path") {
			t.Errorf("%q: %v", foreign, err)
		}
		if content, err := os.ReadFile(path); err != nil || string(content) != foreign {
			t.Errorf("%q has become %q (%v)", foreign, content, err)
		}
	}
}

// TestAForeignFileInPlaceOfOursBlocksUntilRemoved: after a rename another program creates a file of the path. The sink is
// unavailable until that is removed.
func TestAForeignFileInPlaceOfOursBlocksUntilRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	s := newSink(t, path)
	mustPublish(t, s, "one")
	if err := errors.Join(os.Rename(path, path+".1"), os.WriteFile(path, []byte("mine\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var away *sinks.UnavailableError
	if n, err := s.Publish(t.Context(), onlyLane, newBatch("two")); n != 0 || !errors.As(err, &away) || !strings.Contains(away.Reason, "use another path") {
		t.Errorf("%d, %v", n, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, "two")
	if got := countLines(t, path); got != 1 {
		t.Errorf("%d lines", got)
	}
}

// TestAnotherFormatContinuesInTheSameFile: the configured format changes between two runs.
func TestAnotherFormatContinuesInTheSameFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	for _, f := range []format.Format{format.JSON, format.CloudEventsStructured, format.JSON} {
		s, err := New(Config{Path: path}, f)
		if err != nil {
			t.Fatal(err)
		}
		mustPublish(t, s, "one")
		closeSink(t, s)
	}
	if got := countLines(t, path); got != 3 {
		t.Errorf("%d lines", got)
	}
}

func countLines(t *testing.T, path string) int {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		if !json.Valid(line) {
			t.Errorf("%s has the line %q", path, line)
		}
	}
	return bytes.Count(content, []byte("\n"))
}

// TestTextAppendedByAnotherProgramSwallowsNoChange: text without a newline at the end of the file would become the beginning
// of the next line.
func TestTextAppendedByAnotherProgramSwallowsNoChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	s := newSink(t, path)
	want := []string{}
	for i, foreign := range []string{"# note", "# note\n", "{\"half\":", ""} {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 { // the file begins with a line of ours
			mustPublish(t, s, "first")
			want = append(want, "first")
		}
		if _, err := f.WriteString(foreign); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("change-%d", i)
		mustPublish(t, s, name)
		if foreign != "" {
			want = append(want, strings.TrimSuffix(foreign, "\n"))
		}
		want = append(want, name)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %q", len(lines), len(want), lines)
	}
	for i, line := range lines {
		if ours := json.Valid([]byte(line)); ours && !strings.Contains(line, want[i]) || !ours && line != want[i] {
			t.Errorf("line %d is %q, want %q", i+1, line, want[i])
		}
	}
}
