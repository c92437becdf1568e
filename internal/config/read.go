package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"unicode/utf8"
)

// readLimited reads a whole regular file of at most limit bytes. Anything else is refused before it is read: a pipe would
// be waited for, and a device may never end.
func readLimited(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // else a pipe that nobody writes to holds up the open
	if err != nil {
		return nil, fmt.Errorf("cannot read file %s: %w", name, fileErrorCause(err))
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read file %s: %w", name, fileErrorCause(err))
	case info.IsDir():
		return nil, fmt.Errorf("cannot read file %s: it is a directory", name)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("cannot read file %s: it is no regular file (%s)", name, fileKind(info.Mode()))
	case info.Size() > limit:
		return nil, fmt.Errorf("file %s is larger than %s", name, Bytes(limit))
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may grow, and files of the kernel have no size
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read file %s: %w", name, fileErrorCause(err))
	case int64(len(content)) > limit:
		return nil, fmt.Errorf("file %s is larger than %s", name, Bytes(limit))
	}
	return content, nil
}

func fileKind(mode os.FileMode) string {
	switch {
	case mode&os.ModeNamedPipe != 0:
		return "a pipe"
	case mode&os.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// fileErrorCause strips the operation and the path, which the message has already, from an error of the file system.
func fileErrorCause(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// encodingProblem says why content is no text in UTF-8 whose lines end in a newline. The YAML library takes UTF-16, and
// lines that end in a carriage return alone, which then look like one line with a comment in it.
func encodingProblem(content []byte) *Problem {
	const expected = "text in UTF-8 with a newline at the end of each line"
	switch {
	case bytes.HasPrefix(content, []byte{0xFF, 0xFE}), bytes.HasPrefix(content, []byte{0xFE, 0xFF}):
		return &Problem{Line: 1, Message: "not UTF-8", Found: "UTF-16", Expected: expected}
	case bytes.IndexByte(content, 0) >= 0:
		return &Problem{Line: lineAtOffset(content, bytes.IndexByte(content, 0)), Message: "not text", Found: "a zero byte", Expected: expected}
	case !utf8.Valid(content):
		at := firstInvalidUTF8(content)
		return &Problem{Line: lineAtOffset(content, at), Message: "not UTF-8", Found: fmt.Sprintf("the byte 0x%X", content[at]), Expected: expected}
	}
	for i, b := range content {
		if b == '\r' && (i+1 == len(content) || content[i+1] != '\n') {
			return &Problem{Line: lineAtOffset(content, i), Message: "a line that ends in a carriage return alone", Expected: expected}
		}
	}
	return nil
}

func lineAtOffset(content []byte, at int) int { return bytes.Count(content[:at], []byte("\n")) + 1 }

// firstInvalidUTF8 is where content, which is not all UTF-8, stops being so.
func firstInvalidUTF8(content []byte) int {
	at := 0
	for {
		r, size := utf8.DecodeRune(content[at:])
		if r == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
}
