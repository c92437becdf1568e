package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// tailBytes is how much of a log stands in an error: some screens, since a Java or Go stack fills one by itself.
const tailBytes = 8 << 10

// openLog opens the log for appending and notes where this child's part begins, so that an error never shows the
// words of an earlier run.
func (p *Process) openLog() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(p.options.Log), 0o755); err != nil {
		return nil, fmt.Errorf("log of %s: %w", p.options.Name, err)
	}
	f, err := os.OpenFile(p.options.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", p.options.Name, err)
	}
	p.logStart, err = f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", p.options.Name, err)
	}
	return f, nil
}

// tail returns the end of this child's log, or why it cannot be read.
func (p *Process) tail() string {
	f, err := os.Open(p.options.Log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	from := max(p.logStart, end-tailBytes)
	text := make([]byte, end-from)
	n, err := f.ReadAt(text, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return err.Error()
	}
	if n == 0 {
		return "(it wrote nothing)"
	}
	return string(text[:n])
}
