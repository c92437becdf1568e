package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/condition"
)

const (
	pollEvery = 250 * time.Millisecond
	maxLine   = 8 << 20 // of one event, in bytes
	maxBatch  = 256     // events taken at once
)

var (
	readable   = condition.State{Name: "ok", Message: "audit log is read"}
	unreadable = condition.State{Name: "unreadable", Severity: condition.Degraded, Message: "audit log cannot be read; it is tried again"}
)

// File follows an audit log file through its rotations, from where it was read to the last time.
type File struct {
	path  string
	take  Take
	place func(name string) (string, error) // what was stored as its position
	lost  func(reason string)
	state *condition.Condition

	malformed atomic.Uint64
}

// NewFile returns a reader of the file at path. place returns what take has stored last; lost is told when a part of the log
// is gone that was not read.
func NewFile(path string, take Take, place func(string) (string, error), lost func(reason string), log *slog.Logger) *File {
	return &File{path: path, take: take, place: place, lost: lost, state: condition.New(log.With("file", path), readable)}
}

// Status says whether the file can be read; Malformed counts lines that were no audit events.
func (f *File) Status() (status condition.Status, malformed uint64) {
	return f.state.Status(), f.malformed.Load()
}

// Name is the path of the file.
func (f *File) Name() string { return f.path }

// Run follows the file until ctx ends. It fails only where events cannot be stored.
func (f *File) Run(ctx context.Context) error {
	for {
		var stored *storeError
		switch err := f.follow(ctx); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &stored):
			return stored.error
		case err != nil:
			f.state.Become(unreadable, err.Error(), "give the exporter the right to read it, or correct audit.files")
		}
		if !sleep(ctx, pollEvery) {
			return context.Cause(ctx)
		}
	}
}

// storeError is an error of Take: nothing more can be done.
type storeError struct{ error }

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow reads file after file, beginning where it stopped last.
func (f *File) follow(ctx context.Context) error {
	open, at, err := f.resume(ctx)
	if err != nil {
		return err
	}
	f.state.Become(readable, "", "")
	for {
		if at, err = f.read(ctx, open, at); err != nil {
			return errors.Join(err, open.Close())
		}
		next, err := f.next(open, at)
		if err != nil {
			return errors.Join(err, open.Close())
		}
		if next == nil {
			if !sleep(ctx, pollEvery) {
				return errors.Join(context.Cause(ctx), open.Close())
			}
			continue
		}
		// What was written between the last read and the rotation is read from the old file first.
		if _, err := f.read(ctx, open, at); err != nil {
			return errors.Join(err, open.Close(), next.Close())
		}
		if err := open.Close(); err != nil {
			return errors.Join(err, next.Close())
		}
		open, at = next, 0
	}
}

// next returns the file that now has the path, if that is another one or was emptied; nil if it is the same.
func (f *File) next(open *os.File, at int64) (*os.File, error) {
	now, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // between the two steps of a rotation
	}
	if err != nil {
		return nil, err
	}
	was, err := open.Stat()
	if err != nil {
		return nil, err
	}
	if os.SameFile(was, now) {
		if now.Size() < at {
			f.lost("the audit log " + f.path + " was cut short while it was read")
			return os.Open(f.path)
		}
		return nil, nil
	}
	if later, err := f.rotated(now.ModTime(), was.ModTime()); err == nil && later > 0 {
		f.lost(fmt.Sprintf("the audit log %s was rotated %d times between two reads", f.path, later+1))
	}
	return os.Open(f.path)
}

// rotated counts the files of earlier rotations that were written after one moment and before another.
func (f *File) rotated(before, after time.Time) (n int, err error) {
	siblings, err := f.siblings()
	for _, s := range siblings {
		if s.at.After(after) && s.at.Before(before) {
			n++
		}
	}
	return n, err
}

// read takes every whole line from an offset on and returns where it stopped.
func (f *File) read(ctx context.Context, open *os.File, at int64) (int64, error) {
	if _, err := open.Seek(at, io.SeekStart); err != nil {
		return at, err
	}
	lines := bufio.NewReaderSize(open, 256<<10)
	var events []Event
	done := at // of the events not yet taken, too
	for {
		line, size, err := f.line(lines)
		if size > 0 {
			done += int64(size)
			if e, scanned := f.scan(line); scanned {
				events = append(events, e)
			}
		}
		end := errors.Is(err, io.EOF)
		if done > at && (end || len(events) >= maxBatch) {
			if err := f.store(ctx, open, events, done); err != nil {
				return at, err
			}
			events, at = nil, done
		}
		if end {
			return at, nil
		}
		if err != nil {
			return at, err
		}
	}
}

// line returns the next whole line and its size with its end; size 0 where there is none yet. One that is too long is passed
// over, and returned empty.
func (f *File) line(lines *bufio.Reader) (line []byte, size int, err error) {
	for {
		part, err := lines.ReadSlice('\n')
		size += len(part)
		if len(line)+len(part) <= maxLine {
			line = append(line, part...)
		} else {
			line = line[:0]
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, 0, err // what has no end yet is read again
		}
		return line, size, nil
	}
}

func (f *File) scan(line []byte) (Event, bool) {
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return Event{}, false
	}
	e, err := Scan(line)
	if err != nil {
		f.malformed.Add(1)
		return Event{}, false
	}
	return e, true
}

func (f *File) store(ctx context.Context, open *os.File, events []Event, at int64) error {
	mark, err := markOf(open, at)
	if err != nil {
		return err
	}
	if err := f.take(ctx, f.path, events, f.path, mark.String()); err != nil {
		return &storeError{err}
	}
	return nil
}

// resume opens the file that was read last, which may have been rotated away since, where it was read to.
func (f *File) resume(ctx context.Context) (*os.File, int64, error) {
	stored, err := f.place(f.path)
	if err != nil {
		return nil, 0, err
	}
	last, known := parseMark(stored)
	if !known { // what was written before anybody asked for names is not gone through
		open, err := os.Open(f.path)
		if err != nil {
			return nil, 0, err
		}
		end, err := open.Seek(0, io.SeekEnd)
		if err == nil { // so that after a restart what came meanwhile is not taken for what was there before
			err = f.store(ctx, open, nil, end)
		}
		if err != nil {
			return nil, 0, errors.Join(err, open.Close())
		}
		return open, end, nil
	}
	siblings, err := f.siblings()
	if err != nil {
		return nil, 0, err
	}
	for _, s := range append([]sibling{{path: f.path}}, siblings...) {
		open, err := os.Open(s.path)
		if err != nil {
			continue
		}
		if last.fits(open) {
			return open, last.at, nil
		}
		open.Close()
	}
	f.lost("the audit log " + f.path + " does not go on where it was read to: it was rotated away")
	open, err := os.Open(f.path)
	return open, 0, err
}

// sibling is a file of an earlier rotation: the API server puts the time between name and ending.
type sibling struct {
	path string
	at   time.Time
}

func (f *File) siblings() ([]sibling, error) {
	ext := filepath.Ext(f.path)
	stem := strings.TrimSuffix(filepath.Base(f.path), ext)
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return nil, err
	}
	var found []sibling
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), stem+"-") || filepath.Ext(e.Name()) != ext {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			found = append(found, sibling{filepath.Join(filepath.Dir(f.path), e.Name()), info.ModTime()})
		}
	}
	slices.SortFunc(found, func(a, b sibling) int { return cmp.Compare(b.at.UnixNano(), a.at.UnixNano()) })
	return found, nil
}

// mark is a place in a file: how far, and how the file begins, by which it is known again under another name.
type mark struct {
	at, head int64
	sum      string
}

const maxHead = 1024

func markOf(open *os.File, at int64) (mark, error) {
	m := mark{at: at, head: min(at, maxHead)}
	var err error
	m.sum, err = headOf(open, m.head)
	return m, err
}

func headOf(open *os.File, size int64) (string, error) {
	b := make([]byte, size)
	if _, err := open.ReadAt(b, 0); err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}

// String is the form that is stored.
func (m mark) String() string { return fmt.Sprintf("%d %d %s", m.at, m.head, m.sum) }

func parseMark(text string) (m mark, ok bool) {
	n, err := fmt.Sscanf(text, "%d %d %s", &m.at, &m.head, &m.sum)
	return m, err == nil && n == 3 && m.head >= 0 && m.head <= maxHead && m.at >= m.head
}

// fits says whether it is a place in a file.
func (m mark) fits(open *os.File) bool {
	info, err := open.Stat()
	if err != nil || info.Size() < m.at {
		return false
	}
	sum, err := headOf(open, m.head)
	return err == nil && sum == m.sum
}
