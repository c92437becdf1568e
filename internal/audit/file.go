package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

const (
	pollEvery = 250 * time.Millisecond
	maxLine   = 8 << 20 // of one event, in bytes
)

// File follows an audit log file of one API server through its rotations, from where it was read to the last time.
type File struct {
	*Log
	path string

	open    *os.File // that is read; nil: none is
	at      filePosition
	awaited bool // there was no such file when it was looked for first
}

// NewFile returns a reader of the file at path. It opens nothing.
func NewFile(path string, o Options) *File {
	return &File{Log: NewLog(path, "give the exporter the right to read it, or correct audit.files", o), path: path}
}

// Run follows the file until ctx ends. It fails only where events cannot be stored.
func (f *File) Run(ctx context.Context) error {
	defer f.close()
	return Repeat(ctx, pollEvery, f.poll, f.Report)
}

func (f *File) close() {
	if f.open != nil {
		f.open.Close()
	}
	f.open = nil
}

// poll reads what has come, in as many files as the log has gone on in. After an error it begins where it has stored last.
func (f *File) poll(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.open == nil {
		if err := f.resume(ctx); err != nil {
			return err
		}
	}
	for more := true; more; {
		if err := f.read(ctx); err != nil {
			return err
		}
		if more, err = f.advance(ctx); err != nil {
			return err
		}
	}
	return nil
}

// resume opens the file that was read last, which may have been rotated away since.
func (f *File) resume(ctx context.Context) error {
	stored, err := f.Place(f.path)
	if err != nil {
		return err
	}
	last, known := parseFilePosition(stored)
	if !known {
		return f.begin(ctx)
	}
	if last.offset > 0 {
		if f.open, err = last.findIn(f.path); err != nil || f.open != nil {
			f.at = last
			return err
		}
		if _, err := os.Stat(f.path); err != nil {
			return err // what it goes on in is not there yet
		}
		reason := "the audit log " + f.path + " does not go on where it was read to: it was rotated away, compressed or cut"
		if err := f.Lose(ctx, last.since, reason); err != nil {
			return err
		}
	}
	next, rotated, err := f.look()
	if err != nil {
		return err
	}
	return f.enter(next, rotated.since(last.since), last.since)
}

// begin opens a file that was never read. What was written before anybody asked for names is not gone through, but what is
// written from now on is, also in a file that is not there yet.
func (f *File) begin(ctx context.Context) error {
	open, err := os.Open(f.path)
	if err != nil {
		f.awaited = f.awaited || errors.Is(err, fs.ErrNotExist)
		return err
	}
	f.open = open
	end := int64(0)
	if !f.awaited {
		if end, err = lastLine(open); err != nil {
			return err
		}
	}
	if f.at, err = positionIn(open, end, time.Now()); err != nil {
		return err
	}
	// It is stored, so that after a restart what came meanwhile is not taken for what was there before.
	return f.Store(ctx, Part{Origin: f.path, Place: f.path, Position: f.at.String()})
}

// look opens the file at the path of the log, then lists those that were rotated: what is in neither was not there.
func (f *File) look() (*os.File, rotation, error) {
	open, err := os.Open(f.path)
	if err != nil {
		return nil, nil, err
	}
	rotated, err := rotatedFiles(f.path)
	if err != nil {
		return nil, nil, errors.Join(err, open.Close())
	}
	return open, rotated, nil
}

// enter goes on at the beginning of the first of some files that were rotated, or of the one that was at the path of the
// log.
func (f *File) enter(next *os.File, rotated rotation, since time.Time) (err error) {
	if len(rotated) > 0 {
		next.Close()
		if next, err = os.Open(rotated[0].path); err != nil {
			return err
		}
	}
	f.close()
	f.open, f.at = next, filePosition{since: since}
	return nil
}

// advance goes on in the file that the log was continued in, once there is one.
func (f *File) advance(ctx context.Context) (more bool, err error) {
	now, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // between the two steps of a rotation
	}
	if err != nil {
		return false, err
	}
	was, err := f.open.Stat()
	if err != nil {
		return false, err
	}
	if os.SameFile(was, now) {
		return f.restart(ctx)
	}
	if err := f.read(ctx); err != nil { // what was written between the last read and the rotation
		return false, err
	}
	next, rotated, err := f.look()
	if err != nil {
		return false, err
	}
	if n := rotated.compressedAfter(was); n > 0 {
		reason := fmt.Sprintf("%d files of the audit log %s were rotated and compressed before they were read", n, f.path)
		if err := f.Lose(ctx, f.at.since, reason); err != nil {
			return false, errors.Join(err, next.Close())
		}
	}
	return true, f.enter(next, rotated.after(was), f.at.since)
}

// restart goes back to the beginning of a file that was emptied, and written to again, in its place.
func (f *File) restart(ctx context.Context) (more bool, err error) {
	if f.at.fits(f.open) {
		return false, nil
	}
	if err := f.Lose(ctx, f.at.since, "the audit log "+f.path+" was cut short while it was read"); err != nil {
		return false, err
	}
	f.at = filePosition{since: f.at.since}
	return true, nil
}

// read takes every whole line that has come, as long as the file is the one that was begun.
func (f *File) read(ctx context.Context) error {
	if info, err := f.open.Stat(); err != nil || info.Size() <= f.at.offset {
		return err
	}
	if _, err := f.open.Seek(f.at.offset, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(f.open, 256<<10)
	for more := true; more; {
		var part Part
		var end int64
		var err error
		if part, end, more, err = f.readPart(lines); err != nil {
			return err
		}
		if end == f.at.offset || !f.at.fits(f.open) {
			return nil
		}
		next, err := positionIn(f.open, end, part.Newest())
		if err != nil {
			return err
		}
		part.Position = next.String()
		if err := f.Store(ctx, part); err != nil {
			return err
		}
		f.at = next
	}
	return nil
}

// readPart reads the lines that are taken at once, and returns where they end, and whether there may be more.
func (f *File) readPart(lines *bufio.Reader) (part Part, end int64, more bool, err error) {
	part = Part{Origin: f.path, Place: f.path, Since: f.at.since}
	end = f.at.offset
	for len(part.Events) < maxBatch {
		line, size, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			return part, end, false, nil
		}
		if err != nil {
			return part, end, false, err
		}
		end += int64(size)
		if line = bytes.TrimSpace(line); len(line) == 0 && size <= maxLine {
			continue
		}
		if e, err := Scan(line); err == nil {
			part.Events = append(part.Events, e)
		} else {
			part.Malformed++
		}
	}
	return part, end, true, nil
}

// readLine returns the next whole line and its size with its end. One that is too long is passed over, and returned empty.
// What has no end yet is read again later.
func readLine(lines *bufio.Reader) (line []byte, size int, err error) {
	for {
		part, err := lines.ReadSlice('\n')
		size += len(part)
		if size <= maxLine {
			line = append(line, part...)
		} else {
			line = nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, 0, err
		default:
			return line, size, nil
		}
	}
}
