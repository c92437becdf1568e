package source

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// typeCounter counts the records in a file by type without parsing them, for many or large records.
type typeCounter struct {
	path  string
	file  *os.File
	lines *bufio.Reader
	head  []byte // of the current line, as far as it was read
	types map[string]int
}

// headBytes is the inspected part of a record; the type is near its begin.
const headBytes = 1024

func (s *fixture) newTally() *typeCounter {
	t := &typeCounter{path: s.settings.File, types: map[string]int{}}
	s.t.Cleanup(func() {
		if t.file != nil {
			t.file.Close()
		}
	})
	return t
}

// readToEnd reads up to the current end of the file.
func (t *typeCounter) readToEnd() (map[string]int, error) {
	if t.file == nil {
		file, err := os.Open(t.path)
		if errors.Is(err, os.ErrNotExist) {
			return t.types, nil
		}
		if err != nil {
			return nil, err
		}
		t.file, t.lines = file, bufio.NewReaderSize(file, 1<<20)
	}
	for {
		part, err := t.lines.ReadSlice('\n')
		if more := headBytes - len(t.head); more > 0 {
			t.head = append(t.head, part[:min(len(part), more)]...)
		}
		switch {
		case err == nil:
			t.types[recordType(t.head)]++
			t.head = t.head[:0]
		case errors.Is(err, io.EOF):
			return t.types, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// awaitCount waits until n records of a type are emitted.
func (s *fixture) awaitCount(t *typeCounter, what string, n int) {
	s.t.Helper()
	s.awaitCondition(func() string {
		types, err := t.readToEnd()
		if s.requireNoError(err); types[what] < n {
			return fmt.Sprintf("%d records of type %s; have %v", n, what, types)
		}
		return ""
	})
}

func recordType(head []byte) string {
	_, rest, _ := bytes.Cut(head, []byte(`"type":"`))
	name, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(name)
}
