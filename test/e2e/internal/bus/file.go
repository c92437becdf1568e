package bus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// File reads what a sink of kind "stdout" writes to a file, where all changes have one order.
type File struct {
	path string
	file *os.File
	rest []byte // of a line that is still being written
	line int
}

// NewFile reads the file of that path, which need not exist yet.
func NewFile(path string) *File { return &File{path: path} }

// Name implements Reader.
func (f *File) Name() string { return "file" }

// Read implements Reader.
func (f *File) Read(context.Context) ([]Record, error) {
	if f.file == nil {
		file, err := os.Open(f.path)
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		f.file = file
	}
	var records []Record
	for lines := bufio.NewReaderSize(f.file, 1<<20); ; {
		text, err := lines.ReadBytes('\n')
		f.rest = append(f.rest, text...)
		if errors.Is(err, io.EOF) {
			return records, nil
		}
		if err != nil {
			return records, err
		}
		f.line++
		record, _, err := Form{}.read(fmt.Sprintf("%s:%d", f.path, f.line), "", nil, f.rest)
		if err != nil {
			return records, err
		}
		records, f.rest = append(records, record), nil
	}
}

// Close implements Reader.
func (f *File) Close() {
	if f.file != nil {
		_ = f.file.Close()
	}
}
