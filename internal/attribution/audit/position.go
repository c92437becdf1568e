package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

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
