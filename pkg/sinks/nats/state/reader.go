package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// errSegmentsMissing means that the segments that were read are not consecutive.
var errSegmentsMissing = errors.New("segments are missing")

// segmentReader reads the segments of a state in order, and detects that some are missing or were replaced. Its fields
// identify the last segment that it has passed on. One goroutine uses it.
type segmentReader struct {
	created  time.Time // of the stream
	sequence uint64    // 0: none yet
	time     time.Time
	number   uint64
	gapAt    uint64 // the sequence before missing segments, when the whole state was read the last time
}

// readNew calls each for the entries of all segments since the last call, up to the end of the stream in found. After reset
// nothing that was read counts any more, and the next call starts from the first segment.
func (r *segmentReader) readNew(ctx context.Context, c stream.Client, found *stream.Info, each func(sinks.StateEntry) error) (reset bool,
	err error) {
	before := *r
	last := found.State.LastSeq
	if before.wasReplaced(found) {
		return r.restart(), nil
	}
	r.created = found.Created
	if last > before.sequence {
		err = c.ReadRange(ctx, max(1, before.sequence), last, found.Config.AllowDirect, func(m stream.Message) error {
			return r.readMessage(c.Name, m, before, each)
		})
	}
	switch {
	case errors.Is(err, errSegmentsMissing) && before.sequence == 0 && before.gapAt == r.sequence:
		return true, fmt.Errorf("stream %q lacks segments of the state after message %d: they were deleted; `exporter state "+
			"reset` starts again", c.Name, r.sequence)
	case errors.Is(err, errSegmentsMissing):
		return r.restart(), nil
	case err != nil:
		return false, err
	}
	r.gapAt = 0
	return false, nil
}

// wasReplaced reports whether the stream was recreated, purged or went back since the last segment was read.
func (r *segmentReader) wasReplaced(found *stream.Info) bool {
	last := found.State.LastSeq
	return r.sequence != 0 && (!found.Created.Equal(r.created) || last < r.sequence || last == r.sequence && found.State.FirstSeq > last)
}

// restart makes the next readNew start from the first segment.
func (r *segmentReader) restart() (reset bool) {
	*r = segmentReader{gapAt: r.sequence}
	return true
}

// readMessage passes on the entries of one message. The first message is the last one of the call before, if that is still
// in the stream.
func (r *segmentReader) readMessage(name string, m stream.Message, before segmentReader, each func(sinks.StateEntry) error) error {
	if m.Sequence == before.sequence && m.Time.Equal(before.time) {
		return nil
	}
	segment := parseSegmentName(m.Header(headerState))
	switch {
	case m.Sequence <= r.sequence:
		return errSegmentsMissing // another message with this sequence, in a restored stream
	case segment.number == 0:
		return nil
	case r.sequence != 0 && segment.number != r.number+1:
		return errSegmentsMissing
	}
	if err := decodeSegment(m.Data, each); err != nil {
		return fmt.Errorf("message %d of stream %q: %w", m.Sequence, name, err)
	}
	r.sequence, r.time, r.number = m.Sequence, m.Time, segment.number
	return nil
}
