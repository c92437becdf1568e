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

// readLimited reads a regular file of at most limit bytes. Pipes and devices are refused before reading, because a read may
// block or never end.
func readLimited(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe without a writer would block
	if err != nil {
		return nil, fmt.Errorf("cannot read file %s: %w", name, fileErrorCause(err))
	}
	defer func() { _ = f.Close() }() // read-only
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read file %s: %w", name, fileErrorCause(err))
	case info.IsDir():
		return nil, fmt.Errorf("cannot read file %s: it is a directory", name)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("cannot read file %s: not a regular file (%s)", name, fileKind(info.Mode()))
	case info.Size() > limit:
		return nil, fmt.Errorf("file %s is larger than %s", name, Bytes(limit))
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may grow, and kernel files report no size
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

// fileErrorCause removes operation and path from an error of the file system, because the message has them already.
func fileErrorCause(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// encodingProblem reports content that is not UTF-8 text with lines that end in a newline; nil if it is. The YAML library
// would accept UTF-16, and lines that end in a carriage return alone, where a comment hides the rest of the file.
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

// firstInvalidUTF8 returns the offset of the first invalid byte of content, which is not valid UTF-8.
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
