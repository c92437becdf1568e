package bus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// File reads what a sink of kind "stdout" writes to a file, where all changes have one order.
type File struct {
	path string
	file *os.File
	end  int64 // of the last line that was read, in bytes: a crash may tear the next, which the exporter then cuts off
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
	for lines := bufio.NewReaderSize(io.NewSectionReader(f.file, f.end, math.MaxInt64-f.end), 1<<20); ; {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return records, nil
		}
		if err != nil {
			return records, err
		}
		f.line++
		f.end += int64(len(text))
		record, _, err := Form{}.read(fmt.Sprintf("%s:%d", f.path, f.line), "", nil, text)
		if err != nil {
			return records, err
		}
		records = append(records, record)
	}
}

// Close implements Reader.
func (f *File) Close() {
	if f.file != nil {
		_ = f.file.Close()
	}
}
