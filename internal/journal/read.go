package journal

import (
	"context"
	"fmt"
	"sort"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Read returns committed changes that follow offset after, in order and without a hole: at least one, at most the rest of
// a frame (about 1 MiB, or one larger change). It waits until there is one. Any number of readers read at once, each from
// its own place. The records are shared: neither they nor their changes may be modified. Recent changes come from memory,
// older ones from disk, where the changes of a frame share one buffer. When the change after+1 is trimmed already, which
// cannot happen above a declared sink's cursor, Read goes on with the oldest there is.
func (j *Journal) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	return j.readAfter(ctx, after, j.unpacker.Decode)
}

// ReadWithoutBodies is Read for who needs no bodies: changes that come from disk have none.
func (j *Journal) ReadWithoutBodies(ctx context.Context, after uint64) ([]event.Record, error) {
	return j.readAfter(ctx, after, j.unpacker.DecodeWithoutBodies)
}

func (j *Journal) readAfter(ctx context.Context, after uint64, unpack func(stored []byte) ([]event.Change, error)) ([]event.Record, error) {
	for {
		j.mu.Lock()
		if j.logExtent.newest > after {
			records := j.tail.recordsAfter(after)
			j.mu.Unlock()
			if records != nil {
				return records, nil
			}
			return j.readStored(after, unpack)
		}
		changed := j.changed
		j.mu.Unlock()
		if err := j.checkUsable(); err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("journal: read: %w", context.Cause(ctx))
		case <-j.storeFailure.done:
		case <-j.closed:
		}
	}
}

// readStored reads the frame with the change after+1 from disk.
func (j *Journal) readStored(after uint64, unpack func(stored []byte) ([]event.Change, error)) ([]event.Record, error) {
	done, err := j.acquireStore()
	if err != nil {
		return nil, err
	}
	defer done()
	records, err := j.readFrameAfter(after, j.oldestReadable, unpack)
	return records, j.checkCorruption(fmt.Sprintf("read after %d", after), err)
}

// oldestReadable returns the oldest change that no trim has begun to delete.
func (j *Journal) oldestReadable() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(j.logExtent.oldest, j.trimmed)
}

// tail is the newest part of the log in memory, as whole frames.
type tail struct {
	frames []tailFrame
	bytes  int64
}

// tailFrame is a committed frame with its changes as they were appended.
type tailFrame struct {
	records []event.Record // at least one
	bytes   int64
}

func newTailFrame(first uint64, changes []*event.Change, bytes int) tailFrame {
	f := tailFrame{records: make([]event.Record, len(changes)), bytes: int64(bytes)}
	for i, c := range changes {
		f.records[i] = event.Record{Offset: first + uint64(i), Change: c}
	}
	return f
}

// appendFrames appends frames and lets go of the oldest ones above limit bytes.
func (t *tail) appendFrames(frames []tailFrame, limit int64) {
	for _, f := range frames {
		t.frames = append(t.frames, f)
		t.bytes += f.bytes
	}
	n := 0
	for n < len(t.frames) && t.bytes > limit {
		t.bytes -= t.frames[n].bytes
		t.frames[n] = tailFrame{}
		n++
	}
	t.frames = t.frames[n:]
}

// recordsAfter returns the records of the frame with change after+1 that follow after, or nil when it is not here.
func (t *tail) recordsAfter(after uint64) []event.Record {
	i := sort.Search(len(t.frames), func(i int) bool { return t.frames[i].records[0].Offset > after+1 }) - 1
	if i < 0 {
		return nil
	}
	f := &t.frames[i]
	skip := after + 1 - f.records[0].Offset
	if skip >= uint64(len(f.records)) {
		return nil
	}
	return f.records[skip:len(f.records):len(f.records)]
}
