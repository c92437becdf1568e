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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	pollInterval = 250 * time.Millisecond
	maxLine      = 8 << 20 // of one event, in bytes
)

// File follows an audit log file of one API server through its rotations. It resumes at the stored position.
type File struct {
	*Log
	path string

	current    *os.File // being read; nil: none
	position   filePosition
	wasMissing bool // the file did not exist at the first attempt
}

// NewFile returns a reader of the file at path. It opens nothing.
func NewFile(path string, o Options) *File {
	return &File{
		Log: NewLog(path, "give the exporter the right to read it, or correct audit.files", o), path: path,
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
		part.Events, malformed = AppendRecord(part.Events, line)
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

// rotation lists the rotated files of a log, the oldest modification time first.
type rotation []rotatedFile

type rotatedFile struct {
	path       string
	info       fs.FileInfo
	compressed bool
}

// rotatedFiles finds the rotated files of a log. The API server inserts a time before the extension; logrotate appends a
// suffix.
func rotatedFiles(path string) (rotation, error) {
	base, ext := filepath.Base(path), filepath.Ext(path)
	stem := strings.TrimSuffix(base, ext)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var found rotation
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".gz")
		byAPIServer := strings.HasPrefix(name, stem+"-") && filepath.Ext(name) == ext
		byOthers := name != base && (strings.HasPrefix(name, base+".") || strings.HasPrefix(name, base+"-"))
		if !byAPIServer && !byOthers && e.Name() != base+".gz" {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			found = append(found, rotatedFile{filepath.Join(filepath.Dir(path), e.Name()), info, name != e.Name()})
		}
	}
	slices.SortFunc(found, func(a, b rotatedFile) int {
		return cmp.Or(a.info.ModTime().Compare(b.info.ModTime()), cmp.Compare(a.path, b.path))
	})
	return found, nil
}

// uncompressed returns the files that can be read.
func (all rotation) uncompressed() rotation {
	return slices.DeleteFunc(slices.Clone(all), func(r rotatedFile) bool { return r.compressed })
}

// uncompressedPaths returns the paths of the files that can be read, the newest first.
func (all rotation) uncompressedPaths() (found []string) {
	for _, r := range slices.Backward(all.uncompressed()) {
		found = append(found, r.path)
	}
	return found
}

// writtenSince returns the readable files that were modified after a time.
func (all rotation) writtenSince(t time.Time) rotation {
	return slices.DeleteFunc(all.uncompressed(), func(r rotatedFile) bool { return !r.info.ModTime().After(t) })
}

// writtenAfter returns the readable files that follow another one, which may be one of them.
func (all rotation) writtenAfter(was fs.FileInfo) rotation {
	left := all.uncompressed()
	if i := slices.IndexFunc(left, func(r rotatedFile) bool { return os.SameFile(r.info, was) }); i >= 0 {
		return left[i+1:]
	}
	return left.writtenSince(was.ModTime())
}

// countCompressedAfter counts the compressed files that were modified after another one. If that one is not among the
// rotated files, one of the compressed files is assumed to be it.
func (all rotation) countCompressedAfter(was fs.FileInfo) (n int) {
	itself := 1
	for _, r := range all {
		switch {
		case os.SameFile(r.info, was):
			itself = 0
		case r.compressed && r.info.ModTime().After(was.ModTime()):
			n++
		}
	}
	return max(0, n-itself)
}

// filePosition is a position in a file. The hash of the file's head identifies the file under another name (DESIGN.md).
type filePosition struct {
	offset int64
	head   int64 // number of bytes that sum covers
	sum    string
	since  time.Time // response time of the newest event before it; of a new log the start time
}

const maxHead = 1024

// positionIn returns the position at an offset of a file.
func positionIn(open *os.File, offset int64, since time.Time) (filePosition, error) {
	p := filePosition{offset: offset, head: min(offset, maxHead), since: since}
	var err error
	p.sum, err = hashHead(open, p.head)
	return p, err
}

func hashHead(open *os.File, size int64) (string, error) {
	b := make([]byte, size)
	if _, err := open.ReadAt(b, 0); err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}

// String returns the stored form.
func (p filePosition) String() string {
	return fmt.Sprintf("%d %d %s %d", p.offset, p.head, p.sum, unixMillis(p.since))
}

// parseFilePosition parses the stored form. Older ones have no time.
func parseFilePosition(text string) (p filePosition, ok bool) {
	var ms int64
	n, _ := fmt.Sscanf(text, "%d %d %s %d", &p.offset, &p.head, &p.sum, &ms)
	if ms > 0 {
		p.since = time.UnixMilli(ms)
	}
	return p, n >= 3 && p.head >= 0 && p.head <= maxHead && p.offset >= p.head
}

// unixMillis returns 0 for the zero time.
func unixMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// matchesFile reports whether the file has the same head and at least the length of the position.
func (p filePosition) matchesFile(open *os.File) bool {
	info, err := open.Stat()
	if err != nil || info.Size() < p.offset {
		return false
	}
	sum, err := hashHead(open, p.head)
	return err == nil && (sum == p.sum || p.head == 0)
}

// findInLog opens the file of a log that the position matches; nil if there is none. It tries the path before it lists the
// rotated files, so that a file that is renamed in between is found there.
func (p filePosition) findInLog(path string) (*os.File, error) {
	if open := p.findAmong([]string{path}); open != nil {
		return open, nil
	}
	rotated, err := rotatedFiles(path)
	return p.findAmong(rotated.uncompressedPaths()), err
}

// findAmong opens the first file that the position matches; nil if there is none.
func (p filePosition) findAmong(paths []string) *os.File {
	for _, path := range paths {
		open, err := os.Open(path)
		if err != nil {
			continue
		}
		if p.matchesFile(open) {
			return open
		}
		open.Close()
	}
	return nil
}

// lastLineStart returns the offset after the last newline of a file.
func lastLineStart(open *os.File) (int64, error) {
	end, err := open.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	for b := make([]byte, 64<<10); end > 0; {
		from := max(0, end-int64(len(b)))
		n, err := open.ReadAt(b[:end-from], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if i := bytes.LastIndexByte(b[:n], '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		end = from
	}
	return 0, nil
}
