package stdout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// onlyLane is the only lane: the lines have one order.
const onlyLane sinks.Lane = "lines"

// maxWriteBytes is about the size of one write. A batch can be many times larger; a buffer for all of it would cost more
// than the writes it saves.
const maxWriteBytes = 1 << 20

// Sink writes JSON lines. It is used as defined by [sinks.Sink]; with one lane, there is one Publish at a time.
type Sink struct {
	out     *os.File
	path    string // of a file that the sink opens, reopens after a rotation, and closes; "" for standard output
	format  format.Format
	regular bool // a file that can be truncated and synced; otherwise a pipe or a terminal

	buf     []byte
	writing chan error // receives the result of the running write; nil if there is none

	// The following belong to the running write, or to Publish if there is none.
	endOfLines int64 // where the last acknowledged line ends, in bytes; regular files only
	torn       bool  // part of a write may follow the last acknowledged line
}

var _ sinks.Sink = (*Sink)(nil)

// New opens the file, if one is configured, and truncates a torn last line. Its errors name the file. Formats with a key or
// headers are rejected, because a line has no place for these.
func New(cfg Config, f format.Format) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if f.NeedsHeaders() {
		return nil, fmt.Errorf("a line has no key and no headers, which the format %v needs; use %v or %v",
			f, format.JSON, format.CloudEventsStructured)
	}
	if cfg.Path == "" {
		return newOn(os.Stdout, f)
	}
	s := &Sink{path: cfg.Path, format: f}
	if err := s.openPath(); err != nil {
		return nil, err
	}
	return s, nil
}

// newOn returns a sink that writes in the format f to out, which the caller owns.
func newOn(out *os.File, f format.Format) (*Sink, error) {
	info, err := out.Stat()
	if err != nil {
		return nil, err
	}
	s := &Sink{out: out, format: f, regular: info.Mode().IsRegular() && canRead(out)}
	if !s.regular {
		return s, nil
	}
	return s, s.adoptFile(info.Size())
}

// errNoFile means that something is in the place of the file that holds nothing, such as a FIFO.
var errNoFile = errors.New("it is neither a file nor a character device")

// openPath opens or creates the file. A FIFO is not opened: it takes what nobody reads, and then blocks.
func (s *Sink) openPath() error {
	if info, err := os.Stat(s.path); err == nil && !info.Mode().IsRegular() && info.Mode()&os.ModeCharDevice == 0 {
		return fmt.Errorf("stdout.path: %s: %w", s.path, errNoFile)
	}
	out, err := openFile(s.path)
	if err != nil {
		return fmt.Errorf("open the file of stdout.path: %w", err)
	}
	next, err := newOn(out, s.format)
	if err != nil {
		return errors.Join(fmt.Errorf("stdout.path: %s: %w", s.path, err), out.Close())
	}
	s.out, s.regular, s.endOfLines, s.torn = next.out, next.regular, next.endOfLines, next.torn
	return nil
}

// adoptFile finds the end of the last complete line of a file of this size, and truncates the file there. A file that
// another program has written is rejected and not modified.
func (s *Sink) adoptFile(size int64) (err error) {
	if err := checkOwnFile(s.out, size); err != nil {
		return err
	}
	if s.endOfLines, err = lastLineEnd(s.out, size); err != nil {
		return fmt.Errorf("find the last complete line: %w", err)
	}
	s.torn = s.endOfLines < size
	return s.truncateTornLine(size)
}

// followFile handles what happened to the file since the last batch: if it was renamed or deleted, lines continue in a
// new file of its path; if it was truncated (copytruncate), at its current end; if another program has appended to it, after
// that.
func (s *Sink) followFile() error {
	if !s.regular {
		return nil
	}
	info, err := s.out.Stat()
	if err != nil {
		return err
	}
	if s.path != "" {
		named, err := os.Stat(s.path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err != nil || !os.SameFile(named, info) {
			before := s.out
			if err := s.openPath(); err != nil {
				return err
			}
			return before.Close()
		}
	}
	switch {
	case info.Size() < s.endOfLines:
		return s.adoptFile(info.Size())
	case s.torn:
		return s.truncateTornLine(info.Size())
	}
	return s.endForeignLine(info.Size())
}

// endForeignLine keeps what another program has appended to the file, which has this size now, and ends its last line: the
// next change must begin a line of its own.
func (s *Sink) endForeignLine(size int64) error {
	if size == s.endOfLines {
		return nil
	}
	last := make([]byte, 1)
	if _, err := s.out.ReadAt(last, size-1); err != nil {
		return fmt.Errorf("read the end of the file: %w", err)
	}
	if last[0] != '\n' {
		if _, err := s.out.Write([]byte("\n")); err != nil {
			return fmt.Errorf("end a line of another program: %w", err)
		}
		size++
	}
	s.endOfLines = size
	return nil
}

// canRead distinguishes a file that the sink opened from standard output redirected to one, which is open for writing only
// and is not truncated: other programs may write to it as well.
func canRead(f *os.File) bool {
	_, err := f.ReadAt(make([]byte, 1), 0)
	return err == nil || errors.Is(err, io.EOF)
}

// openFile opens or creates a file to append to. It syncs the directory of a new file: acknowledged lines must not vanish
// with the name of their file.
func openFile(path string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_APPEND
	if f, err := os.OpenFile(path, flags, 0); !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	f, err := os.OpenFile(path, flags|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lastLineEnd returns the offset after the last newline of a file of size bytes.
func lastLineEnd(f io.ReaderAt, size int64) (int64, error) {
	block := make([]byte, 64<<10)
	for end := size; end > 0; {
		start := max(0, end-int64(len(block)))
		part := block[:end-start]
		if _, err := f.ReadAt(part, start); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return start + int64(i) + 1, nil
		}
		end = start
	}
	return 0, nil
}

// Lane implements [sinks.Sink].
func (s *Sink) Lane(*event.Change) (sinks.Lane, error) { return onlyLane, nil }

// Publish implements [sinks.Sink]. A file is synced once, at the end of the batch: it gets the complete batch or nothing of
// it. Writes to a pipe cannot be taken back. If ctx ends during a write, that continues; the next Publish or Close waits for
// it.
func (s *Sink) Publish(ctx context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if s.writing != nil { // of a Publish whose ctx ended: its result is ignored, and its messages are in this batch again
		if _, err := s.awaitWrite(ctx); err != nil {
			return 0, err
		}
	}
	accepted := 0
	for done := 0; done < len(batch); {
		first := done == 0
		done += s.encodeLines(batch[done:])
		last := done == len(batch)
		s.writing = make(chan error, 1)
		go func(result chan<- error) { result <- s.writeBuffer(first, last) }(s.writing)
		failure, err := s.awaitWrite(ctx)
		if err != nil {
			return accepted, err
		}
		if failure != nil {
			return accepted, s.unavailableError(failure)
		}
		if last || !s.regular {
			accepted = done
		}
	}
	return accepted, nil
}

func (s *Sink) unavailableError(failure error) error {
	e := &sinks.UnavailableError{Code: condition.SinkFailing, Reason: fmt.Sprintf("cannot write to %s: %v", s.displayName(), failure), Remedy: "look at the disk"}
	switch {
	case errors.Is(failure, syscall.ENOSPC), errors.Is(failure, syscall.EDQUOT), errors.Is(failure, syscall.EFBIG):
		e.Code, e.Remedy = condition.SinkFull, "free space on the disk, or raise its quota or the limit of a file's size"
	case errors.Is(failure, os.ErrPermission), errors.Is(failure, syscall.EROFS):
		e.Code, e.Remedy = condition.SinkUnauthorized, "see that the file and its directory may be written by the user of the exporter"
	case errors.Is(failure, errNoFile), errors.Is(failure, syscall.EISDIR), errors.Is(failure, syscall.ENOTDIR), errors.Is(failure, os.ErrNotExist):
		e.Code, e.Remedy = condition.SinkMisconfigured, "see that stdout.path names a file that can be created, in a directory that exists, and move away what is there"
	}
	return e
}

// awaitWrite waits for the running write and returns its error as failure. If ctx ends first, it returns that error as err.
func (s *Sink) awaitWrite(ctx context.Context) (failure, err error) {
	select {
	case failure = <-s.writing:
		s.writing = nil
		return failure, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// encodeLines fills the buffer for one write and returns how many messages it holds, at least one.
func (s *Sink) encodeLines(batch []sinks.Message) (n int) {
	if cap(s.buf) > 2*maxWriteBytes { // a large message enlarged it
		s.buf = nil
	}
	s.buf = slices.Grow(s.buf[:0], maxWriteBytes+maxWriteBytes/4)
	if s.torn && !s.regular {
		s.buf = append(s.buf, '\n') // a pipe cannot be truncated: end the torn line, so that it does not corrupt the next
	}
	for n < len(batch) && (n == 0 || len(s.buf) < maxWriteBytes) {
		s.buf = append(s.format.AppendValue(s.buf, batch[n].Change), '\n')
		n++
	}
	return n
}

// writeBuffer writes the buffer; first and last mean that it is the first and the last write of the batch. The last one is
// synced. After an error nothing of the batch counts: the file is truncated, at once or, if that fails too, before the next
// batch.
func (s *Sink) writeBuffer(first, last bool) error {
	if !s.regular {
		n, err := s.out.Write(s.buf)
		s.torn = err != nil && (s.torn || n > 0)
		return err
	}
	if first {
		if err := s.followFile(); err != nil {
			return err
		}
	}
	s.torn = true
	_, err := s.out.Write(s.buf)
	if err == nil && last {
		err = s.out.Sync()
	}
	if err == nil && !last {
		return nil
	}
	info, statErr := s.out.Stat()
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	if err != nil {
		return errors.Join(err, s.truncateTornLine(info.Size()))
	}
	s.torn, s.endOfLines = false, info.Size()
	return nil
}

// truncateTornLine truncates a file of this size after the last acknowledged line, if a write has failed. A file that has
// become shorter meanwhile holds nothing of that write.
func (s *Sink) truncateTornLine(size int64) error {
	if s.torn && size > s.endOfLines {
		if err := s.out.Truncate(s.endOfLines); err != nil {
			return fmt.Errorf("truncate a torn line: %w", err)
		}
	}
	s.torn = false
	return nil
}

func (s *Sink) displayName() string {
	if s.path != "" {
		return s.path
	}
	return os.Stdout.Name()
}

// Close waits for a write that is still running and closes the file. Standard output stays open.
func (s *Sink) Close(ctx context.Context) error {
	if s.writing != nil {
		if _, err := s.awaitWrite(ctx); err != nil {
			return fmt.Errorf("a write to %s is still running: %w", s.displayName(), err)
		}
	}
	if s.path != "" {
		return s.out.Close()
	}
	return nil
}

// Config is the destination of the lines.
type Config struct {
	// Path is a file to append to, empty: standard output. One that holds anything but changes is refused; it may be
	// renamed, deleted or truncated.
	Path string `mapstructure:"path"`
}

// Validate checks everything that needs no access to the file system.
func (c Config) Validate() error {
	if strings.HasSuffix(c.Path, string(os.PathSeparator)) {
		return fmt.Errorf("stdout.path: %q is a directory; name a file in it", c.Path)
	}
	return nil
}

// linePrefixes are the beginnings of lines in all formats: the format of a file may have changed since the last run.
var linePrefixes = func() (all [][]byte) {
	for _, f := range format.All() {
		if f.NeedsHeaders() {
			continue
		}
		line := f.AppendValue(nil, &event.Change{})
		if i := bytes.IndexByte(line, ':'); i > 0 {
			all = append(all, line[:i+1])
		}
	}
	return all
}()

// checkOwnFile returns an error unless a file of size bytes is empty or begins with a line of the exporter. After a crash it
// may hold only a part of its first line.
func checkOwnFile(f io.ReaderAt, size int64) error {
	begin := make([]byte, min(size, 64))
	if _, err := f.ReadAt(begin, 0); err != nil {
		return err
	}
	for _, b := range linePrefixes {
		if n := min(len(b), len(begin)); bytes.Equal(b[:n], begin[:n]) {
			return nil
		}
	}
	line, _, _ := bytes.Cut(begin, []byte("\n"))
	return fmt.Errorf("this file does not hold changes (it begins with %q): use another path", line)
}
