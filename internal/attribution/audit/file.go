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
	pollInterval = 250 * time.Millisecond
	maxLine      = 8 << 20 // of one event, in bytes
)

// File follows an audit log file of one API server through its rotations. It resumes at the stored position.
type File struct {
	*Log
	path     string
	envelope Envelope

	current    *os.File // being read; nil: none
	position   filePosition
	wasMissing bool // the file did not exist at the first attempt
}

// NewFile returns a reader of the file at path, whose lines have this envelope. It opens nothing.
func NewFile(path string, envelope Envelope, o Options) *File {
	return &File{
		Log: NewLog(path, "give the exporter the right to read it, or correct audit.files", o), path: path, envelope: envelope,
	}
}

// Run follows the file until ctx ends and returns its cause. It fails only if events cannot be stored.
func (f *File) Run(ctx context.Context) error {
	defer f.closeCurrent()
	return PollUntilDone(ctx, pollInterval, f.readAvailable, f.UpdateCondition)
}

func (f *File) closeCurrent() {
	if f.current != nil {
		f.current.Close()
	}
	f.current = nil
}

// readAvailable reads everything that has been written, across rotations. After an error the next call resumes at the stored
// position.
func (f *File) readAvailable(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			f.closeCurrent()
		}
	}()
	if f.current == nil {
		if err := f.resumeStored(ctx); err != nil {
			return err
		}
	}
	for more := true; more; {
		if err := f.readLines(ctx); err != nil {
			return err
		}
		if more, err = f.followRotation(ctx); err != nil {
			return err
		}
	}
	return nil
}

// resumeStored opens the file of the stored position, which may have been rotated away since.
func (f *File) resumeStored(ctx context.Context) error {
	stored, err := f.StoredPosition(f.path)
	if err != nil {
		return err
	}
	last, known := parseFilePosition(stored)
	if !known {
		return f.startAtEnd(ctx)
	}
	if last.offset > 0 {
		if f.current, err = last.findInLog(f.path); err != nil || f.current != nil {
			f.position = last
			return err
		}
		if _, err := os.Stat(f.path); err != nil {
			return err // its successor does not exist yet
		}
		reason := "the audit log " + f.path + " does not continue at the stored position: it was rotated away, compressed or truncated"
		if err := f.StoreLoss(ctx, last.since, reason); err != nil {
			return err
		}
	}
	next, rotated, err := f.openWithRotations()
	if err != nil {
		return err
	}
	return f.startFile(next, rotated.writtenSince(last.since), last.since)
}

// startAtEnd opens a file that was never read. It skips what was written before the first start, but nothing of a file that
// was created after it.
func (f *File) startAtEnd(ctx context.Context) error {
	open, err := os.Open(f.path)
	if err != nil {
		f.wasMissing = f.wasMissing || errors.Is(err, fs.ErrNotExist)
		return err
	}
	f.current = open
	end := int64(0)
	if !f.wasMissing {
		if end, err = lastLineStart(open); err != nil {
			return err
		}
	}
	if f.position, err = positionIn(open, end, time.Now()); err != nil {
		return err
	}
	// Store the position, so that a restart does not skip what is written from now on.
	return f.StorePart(ctx, Part{Origin: f.path, Place: f.path, Position: f.position.String()})
}

// openWithRotations opens the file at the path of the log, then lists the rotated ones. In this order no file is missed by a
// rotation in between.
func (f *File) openWithRotations() (*os.File, rotation, error) {
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

// startFile continues at the start of the first rotated file, or of next if there is none.
func (f *File) startFile(next *os.File, rotated rotation, since time.Time) (err error) {
	if len(rotated) > 0 {
		next.Close()
		if next, err = os.Open(rotated[0].path); err != nil {
			return err
		}
	}
	f.closeCurrent()
	f.current, f.position = next, filePosition{since: since}
	return nil
}

// followRotation continues in the next file of the log, once there is one. more reports whether there is anything to read.
func (f *File) followRotation(ctx context.Context) (more bool, err error) {
	now, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // in the middle of a rotation
	}
	if err != nil {
		return false, err
	}
	was, err := f.current.Stat()
	if err != nil {
		return false, err
	}
	if os.SameFile(was, now) {
		return f.restartTruncated(ctx)
	}
	if err := f.readLines(ctx); err != nil { // written between the last read and the rotation
		return false, err
	}
	next, rotated, err := f.openWithRotations()
	if err != nil {
		return false, err
	}
	if n := rotated.countCompressedAfter(was); n > 0 {
		reason := fmt.Sprintf("%d files of the audit log %s were rotated and compressed before they were read", n, f.path)
		if err := f.StoreLoss(ctx, f.position.since, reason); err != nil {
			return false, errors.Join(err, next.Close())
		}
	}
	return true, f.startFile(next, rotated.writtenAfter(was), f.position.since)
}

// restartTruncated restarts a file that was truncated in place and written again (logrotate copytruncate).
func (f *File) restartTruncated(ctx context.Context) (more bool, err error) {
	if f.position.matchesFile(f.current) {
		return false, nil
	}
	if err := f.StoreLoss(ctx, f.position.since, "the audit log "+f.path+" was truncated while it was read"); err != nil {
		return false, err
	}
	f.position = filePosition{since: f.position.since}
	return true, nil
}

// readLines stores every complete line, as long as the file still is the one of the position.
func (f *File) readLines(ctx context.Context) error {
	if info, err := f.current.Stat(); err != nil || info.Size() <= f.position.offset {
		return err
	}
	if _, err := f.current.Seek(f.position.offset, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(f.current, 256<<10)
	for more := true; more; {
		var part Part
		var end int64
		var err error
		if part, end, more, err = f.readPart(lines); err != nil {
			return err
		}
		if end == f.position.offset || !f.position.matchesFile(f.current) {
			return nil
		}
		next, err := positionIn(f.current, end, part.NewestEvent())
		if err != nil {
			return err
		}
		part.Position = next.String()
		if err := f.StorePart(ctx, part); err != nil {
			return err
		}
		f.position = next
	}
	return nil
}

// readPart reads up to maxBatch events. end is the offset after them; more reports whether there may be further lines.
func (f *File) readPart(lines *bufio.Reader) (part Part, end int64, more bool, err error) {
	part = Part{Origin: f.path, Place: f.path, Since: f.position.since}
	end = f.position.offset
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
		if len(line) == 0 { // too long
			part.Malformed++
			continue
		}
		var malformed int
		part.Events, malformed = f.envelope.Append(part.Events, line)
		part.Malformed += malformed
	}
	return part, end, true, nil
}

// readLine returns the next complete line and its size with the newline. A line above maxLine is skipped and returned
// empty. A line without a newline yields io.EOF and is read again later.
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
