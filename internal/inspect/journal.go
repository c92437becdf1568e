package inspect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
)

// withJournal opens the journal in a directory for reading, calls read with a buffered writer, and closes the journal.
func withJournal(dir string, out io.Writer, read func(*journal.Offline, io.Writer) error) error {
	j, err := journal.OpenOffline(dir)
	if err != nil {
		return journalExitError(err)
	}
	w := bufio.NewWriterSize(out, 64<<10)
	err = errors.Join(read(j, w), w.Flush(), j.Close())
	if _, given := exit.CodeOf(err); given {
		return err
	}
	return exit.With(exit.Runtime, err)
}

// journalExitError adds the exit code to an error at opening a journal, and the remedy if an exporter has locked it.
func journalExitError(err error) error {
	switch {
	case errors.Is(err, journal.ErrLocked):
		return exit.With(exit.Environment, fmt.Errorf("%w; stop the exporter first, or read the numbers of a running one from its status page (admin.listen) and use exporter signal", err))
	case errors.Is(err, journal.ErrBroken):
		return exit.With(exit.Runtime, err)
	}
	return exit.With(exit.Environment, err)
}

// requireKnownSink refuses a sink that neither the configuration nor the journal contains, most likely a misspelt name.
func requireKnownSink(j *journal.Offline, configured []string, sink string) error {
	names := append(j.Sinks(), configured...)
	if slices.Contains(names, sink) {
		return nil
	}
	slices.Sort(names)
	return usageErrorf("no sink %q here; there are: %s", sink, orDash(strings.Join(slices.Compact(names), ", ")))
}

// usageErrorf returns an error about wrong arguments.
func usageErrorf(format string, args ...any) error {
	return exit.With(exit.Usage, fmt.Errorf(format, args...))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
