package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// TreatDeadLetters does to the journal in a directory, on which no exporter runs, what a signal to retry or discard dead
// letters does to that of a running one. names are the configured sinks. The signal that it returns has no ID and is stored
// nowhere. Its errors are those of [journal.EditStopped]; the signal has an end if the journal could be opened.
func TreatDeadLetters(ctx context.Context, dir string, r signals.Request, names []string) (s signals.Signal, err error) {
	err = journal.EditStopped(ctx, dir, func(j *journal.Journal) (err error) {
		s = r.New(time.Now())
		s.ID = ""
		if refusal := refusalOfLetters(j, r, names); refusal != "" {
			s = s.End(signals.Refused, time.Now(), 0, refusal)
			return nil
		}
		s, err = treatLetters(ctx, j, s, r)
		return err
	})
	return s, err
}

// treatLetters retries or discards the dead letters at some offsets, or all of the sink, and returns the signal with its
// end.
func treatLetters(ctx context.Context, j *journal.Journal, s signals.Signal, r signals.Request) (signals.Signal, error) {
	var err error
	offsets := r.Offsets
	if r.All {
		if offsets, err = j.DeadLetterOffsets(s.Sink); err != nil {
			return s.End(signals.Aborted, time.Now(), 0, err.Error()), err
		}
	}
	if len(offsets) == 0 {
		return s.End(signals.Nothing, time.Now(), 0, "the sink has no dead letters"), nil
	}
	var n int
	var kept map[string]int
	result := "%d discarded"
	if s.Kind == signals.RetryDeadLetters {
		result = "%d are delivered in their turn"
		n, kept, err = j.RequeueDeadLetters(ctx, s.Sink, offsets)
	} else {
		n, err = j.DropDeadLetters(ctx, s.Sink, offsets)
	}
	text, state := fmt.Sprintf(result, n), signals.Done
	for _, reason := range slices.Sorted(maps.Keys(kept)) {
		text += fmt.Sprintf("; %d stay: %s", kept[reason], reason)
	}
	id, failed := j.ID()
	if id != "" && n > 0 && s.Kind == signals.RetryDeadLetters { // there is a replicated state
		text += "; if another exporter takes over before that, they are dead letters again in the journal where they were"
	}
	if err = cmp.Or(err, failed); err != nil {
		text, state = text+"; then: "+err.Error(), signals.Aborted
	}
	return s.End(state, time.Now(), uint64(n), text), err
}

// refusalOfLetters returns why a request about dead letters is refused; "" if it is not. Those of a sink that is not
// configured any more can be discarded.
func refusalOfLetters(j *journal.Journal, r signals.Request, names []string) string {
	if r.Kind == signals.RetryDeadLetters && !slices.Contains(names, r.Sink) {
		return describeNotConfigured(r.Sink, names)
	}
	stored, err := j.DeadLetterOffsets(r.Sink)
	if err != nil {
		return err.Error()
	}
	for _, offset := range r.Offsets {
		if _, found := slices.BinarySearch(stored, offset); !found {
			return fmt.Sprintf("sink %q has no dead letter at offset %d", r.Sink, offset)
		}
	}
	return ""
}

// describeNotConfigured describes that a sink is not among those that are.
func describeNotConfigured(sink string, names []string) string {
	return fmt.Sprintf("no sink %q is configured; there are: %s", sink, strings.Join(names, ", "))
}

// letterReader reads dead letters of a journal, on which an exporter runs or not.
type letterReader interface {
	DeadLettersAfter(sink string, after uint64, limit int) ([]event.DeadLetter, error)
}

// lettersRead is how many dead letters are held at once: each has the bodies of an object.
const lettersRead = 16

// ReadDeadLetters returns dead letters of a sink in JSON, as [signals.Handler] does.
func ReadDeadLetters(j letterReader, sink string, offset, after uint64) (all []json.RawMessage, err error) {
	limit := lettersRead
	if offset > 0 {
		after, limit = offset-1, 1
	}
	found, err := j.DeadLettersAfter(sink, after, limit)
	if err == nil && offset > 0 && (len(found) == 0 || found[0].Offset != offset) {
		err = &signals.InvalidError{Reason: fmt.Sprintf("sink %q has no dead letter at offset %d", sink, offset)}
	}
	for _, d := range found {
		all = append(all, format.AppendDeadLetter(nil, d, offset > 0))
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}
