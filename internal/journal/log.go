package journal

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// minTrimBytes are stored bytes worth a trim.
const minTrimBytes = 1 << 20

// Log holds the changes of the journal, each under its offset, in frames on disk and, of the newest part, in memory. Safe
// for concurrent use.
type Log struct {
	store     *store
	changed   *broadcast
	orphans   *OrphanLedger
	tailBytes int64
	retention retention // of the committer's goroutine

	mu     sync.Mutex
	extent logExtent
	// trimmed is the offset below which a trim deletes. A batch is visible to readers of the store before it is durable, and
	// extent follows only after that.
	trimmed  uint64
	tail     tail
	replayed atomic.Uint64 // offset from which a replay reads on; 0 if there is none
}

// Oldest returns the offset of the oldest change that can be read; it is Newest()+1 when there is none.
func (l *Log) Oldest() uint64 { return l.currentExtent().oldest }

// Newest returns the offset of the newest committed change; 0 before the first.
func (l *Log) Newest() uint64 { return l.currentExtent().newest }

// Read returns committed changes that follow offset after, in order and without a hole: at least one, at most the rest of
// a frame (about 1 MiB, or one larger change). It waits until there is one. Any number of readers read at once, each from
// its own offset. The records are shared: neither they nor their changes may be modified. Recent changes come from memory,
// older ones from disk, where the changes of a frame share one buffer. When the change after+1 is trimmed already, which
// cannot happen above a declared sink's cursor, Read continues with the oldest change.
func (l *Log) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	return l.readAfter(ctx, after, l.store.decoder.Decode)
}

// ReadWithoutBodies is Read for callers that need no bodies: changes that come from disk have none.
func (l *Log) ReadWithoutBodies(ctx context.Context, after uint64) ([]event.Record, error) {
	return l.readAfter(ctx, after, l.store.decoder.DecodeWithoutBodies)
}

func (l *Log) readAfter(
	ctx context.Context, after uint64, decode func(stored []byte) ([]event.Change, error),
) ([]event.Record, error) {
	for {
		changed := l.changed.nextSignal()
		records, exists := l.readTail(after)
		if records != nil {
			return records, nil
		}
		if exists {
			return readStore(l.store, fmt.Sprintf("read after %d", after), func(r storeReader) ([]event.Record, error) {
				return frameReader{r}.readFrameAfter(after, l.oldestReadable, decode)
			})
		}
		if err := l.store.checkUsable(); err != nil {
			return nil, err
		}
		if err := l.store.waitFor(ctx, changed); err != nil {
			return nil, fmt.Errorf("journal: read: %w", err)
		}
	}
}

// readTail returns the records that follow after from memory, nil where they are not there, and whether they exist.
func (l *Log) readTail(after uint64) (records []event.Record, exists bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.extent.newest <= after {
		return nil, false
	}
	return l.tail.recordsAfter(after), true
}

// oldestReadable returns the oldest change that no trim has begun to delete.
func (l *Log) oldestReadable() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.extent.oldest, l.trimmed)
}

func (l *Log) currentExtent() logExtent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.extent
}

func (l *Log) frames() frameReader { return frameReader{l.store.storeReader} }

func (l *Log) loadExtent() error {
	extent, err := l.frames().loadExtent()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.extent = extent
	return err
}

// publishWrite makes the log part of a committed group visible.
func (l *Log) publishWrite(w *logWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.extent = w.extent
	if w.cleared {
		l.tail = tail{}
	}
	l.tail.appendFrames(w.frames, l.tailBytes)
}

type logWrite struct {
	log       *Log
	batch     *writeBatch
	extent    logExtent       // as it will be after the commit
	openFrame []*event.Change // have no offset yet
	openBytes int
	frames    []tailFrame // that were sealed
	cleared   bool        // all changes from before are dropped
}

func (l *Log) newWrite(b *writeBatch) logWrite {
	return logWrite{log: l, batch: b, extent: l.currentExtent()}
}

// addChange gives a change the next offset, and returns that.
func (w *logWrite) addChange(c *event.Change) (offset uint64) {
	w.openFrame = append(w.openFrame, c)
	offset = w.extent.newest + uint64(len(w.openFrame))
	w.openBytes += c.Size()
	w.log.orphans.recordChange(w.batch, c, offset)
	if w.openBytes >= codec.FrameBytes {
		w.sealFrame()
	}
	return offset
}

func (w *logWrite) sealFrame() {
	if len(w.openFrame) == 0 {
		return
	}
	first := w.extent.newest + 1
	stored := w.batch.encoder.Encode(codec.FrameHeader{Count: uint64(len(w.openFrame)), Before: w.extent.endBytes}, w.openFrame)
	key := codec.KeyFrame(first)
	w.batch.putKey(key, stored)
	w.extent.newest += uint64(len(w.openFrame))
	w.extent.endBytes += uint64(len(key) + len(stored))
	f := tailFrame{records: make([]event.Record, len(w.openFrame)), bytes: int64(w.openBytes)}
	for i, c := range w.openFrame {
		f.records[i] = event.Record{Offset: first + uint64(i), Change: c}
	}
	w.frames = append(w.frames, f)
	w.openFrame, w.openBytes = nil, 0
}

// dropAll deletes all changes. Offsets go on.
func (w *logWrite) dropAll() {
	w.batch.removePrefix([]byte{codec.PrefixFrame})
	w.batch.putKey(codec.KeyEmptied, codec.EncodeNumber(w.extent.newest))
	w.extent.oldest, w.extent.startBytes, w.cleared = w.extent.newest+1, w.extent.endBytes, true
}

// trimSettled deletes the frames up to low, the lowest cursor, once they are worth it and have been kept for the retention.
// capacity is how many bytes of changes may be stored. The newest frame always stays: it determines the next offset.
func (w *logWrite) trimSettled(low uint64, capacity int64, diskLow bool) error {
	if kept := w.log.retention.trimLimit(low, time.Now()); w.extent.sizeBytes() < capacity/2 && !diskLow {
		low = kept // the retention gives way before a bound does
		if from := w.log.replayed.Load(); from > 0 {
			low = min(low, from-1)
		}
	}
	if low < w.extent.oldest || !w.isTrimWorthwhile(low, capacity) {
		return nil
	}
	it, err := w.log.store.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return err
	}
	defer it.Close()
	it.SeekLT(codec.KeyFrame(low + 2)) // the frame with the first change above low, else the newest committed frame
	keep, h, err := frameHeaderAt(it)
	if err != nil {
		return err
	}
	if keep <= w.extent.oldest {
		return nil
	}
	_ = w.batch.DeleteRange(codec.KeyFrame(w.extent.oldest), codec.KeyFrame(keep), nil) // a batch in memory does not fail
	w.extent.oldest, w.extent.startBytes = keep, h.Before
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	w.log.trimmed = keep
	return nil
}

// isTrimWorthwhile estimates from the average size of a change whether a trim to low frees enough.
func (w *logWrite) isTrimWorthwhile(low uint64, capacity int64) bool {
	held := w.extent.sizeBytes()
	if held >= capacity/2 {
		return true
	}
	average := float64(held) / float64(w.extent.newest-w.extent.oldest+1)
	return average*float64(low-w.extent.oldest+1) >= float64(min(minTrimBytes, capacity/8))
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

// appendFrames appends frames and drops the oldest ones above limit bytes.
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

// recordsAfter returns the records after an offset in the frame that holds the next one, or nil when that frame is not in
// memory.
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

// retention keeps changes for some time after every sink has settled them, for a sink whose destination
// later turns out to have lost what it acknowledged. Not safe for concurrent use.
type retention struct {
	keep    time.Duration
	samples []settledSample // ascending, at most about maxSettledSamples
}

// settledSample records that everything up to low was settled at a time.
type settledSample struct {
	at  time.Time
	low uint64
}

// maxSettledSamples bounds the samples, and with their distance how much longer than needed a change is kept.
const maxSettledSamples = 32

// trimLimit returns up to where everything has been settled for long enough; low is up to where it is settled now. Changes
// settled before the process started count from its first commit.
func (r *retention) trimLimit(low uint64, now time.Time) uint64 {
	if r.keep <= 0 {
		return low
	}
	if n := len(r.samples); n == 0 || now.Sub(r.samples[n-1].at) >= r.keep/maxSettledSamples {
		r.samples = append(r.samples, settledSample{now, low})
	}
	for len(r.samples) > 1 && now.Sub(r.samples[1].at) >= r.keep {
		r.samples = r.samples[1:]
	}
	if now.Sub(r.samples[0].at) < r.keep {
		return 0
	}
	return min(r.samples[0].low, low) // a sink that went back needs more
}
