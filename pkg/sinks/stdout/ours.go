package stdout

import (
	"bytes"
	"fmt"
	"io"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// linePrefixes are the beginnings of lines in all formats: the format of a file may have changed since the last run.
var linePrefixes = func() (all [][]byte) {
	for _, f := range format.All() {
		if f.NeedsHeaders() {
			continue
		}
		line := f.AppendValue(nil, &event.Change{})
		if i := bytes.IndexByte(line, ':'); i > 0 {
			all = append(all, line[:i+1])
		}
	}
	return all
}()

// checkOwnFile returns an error unless a file of size bytes is empty or begins with a line of the exporter. After a crash it
// may hold only a part of its first line.
func checkOwnFile(f io.ReaderAt, size int64) error {
	begin := make([]byte, min(size, 64))
	if _, err := f.ReadAt(begin, 0); err != nil {
		return err
	}
	for _, b := range linePrefixes {
		if n := min(len(b), len(begin)); bytes.Equal(b[:n], begin[:n]) {
			return nil
		}
	}
	line, _, _ := bytes.Cut(begin, []byte("\n"))
	return fmt.Errorf("this file does not hold changes (it begins with %q): use another path", line)
}
