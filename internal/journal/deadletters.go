package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// DeadLetters counts the dead letters of all sinks and bounds their bytes. The letters themselves stay on disk. Safe for
// concurrent use.
type DeadLetters struct {
	store     *store
	queue     *queue
	maxBytes  int64
	condition *condition.Condition

	mu     sync.Mutex
	counts map[string]deadLetterCount // by sink, declared or not
}

// deadLetterCount is how many dead letters a sink has, and their stored bytes.
type deadLetterCount struct{ letters, bytes int64 }

// NewestDeadLetters returns at most limit dead letters of a sink, that with the highest offset first. It reads the disk. A
// sink that is not known has none.
func (d *DeadLetters) NewestDeadLetters(sink string, limit int) ([]event.DeadLetter, error) {
	return readStore(d.store, fmt.Sprintf("dead letters of sink %q", sink), func(r storeReader) ([]event.DeadLetter, error) {
		return deadLetterReader{r}.readLetters(sink, limit, (*pebble.Iterator).Last, (*pebble.Iterator).Prev)
	})
}

// DeadLettersAfter returns at most limit dead letters of a sink behind an offset, in order of offsets. It reads the disk. A
// sink that is not known has none.
func (d *DeadLetters) DeadLettersAfter(sink string, after uint64, limit int) ([]event.DeadLetter, error) {
	return readStore(d.store, fmt.Sprintf("dead letters of sink %q", sink), func(r storeReader) ([]event.DeadLetter, error) {
		return deadLetterReader{r}.lettersAfter(sink, after, limit)
	})
}

// CheckDeadLetterSpace returns nil while one more dead letter may be settled, else an error with the remedy: the lane that
// has one waits and asks again. Letters that are being settled when the bound is reached are still stored, so the bound may
// be exceeded by as much. It never waits for the store.
func (d *DeadLetters) CheckDeadLetterSpace() error {
	if p := d.fullProblem(); p.Code != "" {
		return p.AsError()
	}
	return nil
}

// fullProblem returns why no further dead letter fits; zero when one does.
func (d *DeadLetters) fullProblem() condition.Problem {
	d.mu.Lock()
	defer d.mu.Unlock()
	return deadLettersFull(d.counts, d.maxBytes)
}

func (d *DeadLetters) updateCondition() {
	d.condition.Update(d.fullProblem(), "bytes", d.totalBytes(), "maxDeadLetters", d.maxBytes)
}

func (d *DeadLetters) totalBytes() (total int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.counts {
		total += c.bytes
	}
	return total
}

// allCounts returns a copy of the counts, by sink.
func (d *DeadLetters) allCounts() map[string]deadLetterCount {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.counts)
}

func (d *DeadLetters) loadFromStore() error {
	counts, err := d.reader().countBySink()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts = counts
	return err
}

func (d *DeadLetters) reader() deadLetterReader { return deadLetterReader{d.store.storeReader} }

// publishWrite makes the counts of a committed group visible.
func (d *DeadLetters) publishWrite(w *deadLetterWrite) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.Copy(d.counts, w.counts)
}

type deadLetterWrite struct {
	letters *DeadLetters
	batch   *writeBatch
	counts  map[string]deadLetterCount // of sinks that change, as they will be after the commit
	sizes   map[string]int64           // stored bytes of letters in the group, by key
}

func (d *DeadLetters) newWrite(b *writeBatch) deadLetterWrite {
	return deadLetterWrite{letters: d, batch: b, counts: map[string]deadLetterCount{}, sizes: map[string]int64{}}
}

// checkDeadLetters refuses letters that name no committed change.
func checkDeadLetters(letters []event.DeadLetter, newest uint64) error {
	for _, d := range letters {
		if d.Change == nil || d.Offset == 0 || d.Offset > newest {
			return fmt.Errorf("dead letter %d names no change of the journal", d.Offset)
		}
	}
	return nil
}

// storeLetters stores dead letters of a sink. A sink that was killed before its cursor was stored, or went back, may give up
// on the same change twice: the later letter replaces the earlier one.
func (w *deadLetterWrite) storeLetters(sink string, letters []event.DeadLetter) error {
	if len(letters) == 0 {
		return nil
	}
	count, changed := w.counts[sink]
	if !changed {
		count = w.letters.allCounts()[sink]
	}
	for i := range letters {
		key, value := codec.KeyDeadLetter(sink, letters[i].Offset), codec.EncodeDeadLetter(w.batch.encoder, &letters[i])
		before, err := w.storedSize(key)
		if err != nil {
			return w.letters.store.checkCorruption("settle", err)
		}
		if before == 0 {
			count.letters++
		}
		w.batch.putKey(key, value)
		size := int64(len(key) + len(value))
		w.sizes[string(key)] = size
		count.bytes += size - before
	}
	w.counts[sink] = count
	return nil
}

// storedSize returns the stored bytes of a dead letter as it is in this group, 0 when there is none.
func (w *deadLetterWrite) storedSize(key []byte) (int64, error) {
	if size, ok := w.sizes[string(key)]; ok {
		return size, nil
	}
	value, err := w.letters.store.getValue(key)
	if err != nil || value == nil {
		return 0, err
	}
	return int64(len(key) + len(value)), nil
}

type deadLetterReader struct{ storeReader }

func (r deadLetterReader) countBySink() (map[string]deadLetterCount, error) {
	counts := map[string]deadLetterCount{}
	return counts, r.forEachKey([]byte{codec.PrefixDeadLetter}, func(key, value []byte) error {
		name, _, err := codec.SplitDeadLetterKey(key)
		c := counts[name]
		c.letters++
		c.bytes += int64(len(key) + len(value))
		counts[name] = c
		return err
	})
}

// lettersAfter returns at most limit dead letters of a sink behind an offset, in order of offsets.
func (r deadLetterReader) lettersAfter(sink string, after uint64, limit int) ([]event.DeadLetter, error) {
	begin := func(it *pebble.Iterator) bool { return it.SeekGE(codec.KeyDeadLetter(sink, after+1)) }
	return r.readLetters(sink, limit, begin, (*pebble.Iterator).Next)
}

// readLetters returns at most limit dead letters of a sink, from the one that begin finds on.
func (r deadLetterReader) readLetters(
	sink string, limit int, begin, next func(*pebble.Iterator) bool,
) (letters []event.DeadLetter, err error) {
	it, err := r.newPrefixIter(codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := begin(it); ok && len(letters) < limit; ok = next(it) {
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		d, err := r.decodeLetter(it.Key(), value)
		if err != nil {
			return nil, err
		}
		letters = append(letters, d)
	}
	return letters, it.Error()
}

func (r deadLetterReader) decodeLetter(key, value []byte) (event.DeadLetter, error) {
	_, offset, err := codec.SplitDeadLetterKey(key)
	if err != nil {
		return event.DeadLetter{}, err
	}
	return codec.DecodeDeadLetter(r.decoder, offset, value)
}

// lettersPerWrite bounds the dead letters that one write reads, so that others do not wait for it.
const lettersPerWrite = 32

// Reasons why a dead letter is not appended again.
const (
	reasonNewer    = "a newer change of the object was observed, or it is a control record; it would be out of order"
	reasonWithheld = "its body could not be redacted and was not kept"
)

// reasonTakenOver is the reason of a dead letter that was retried in vain.
const reasonTakenOver = "it was retried, and another exporter has taken over before that was known to be delivered"

// DeadLetterOffsets returns the offsets of the dead letters of a sink behind an offset, ascending. It reads the disk.
func (d *DeadLetters) DeadLetterOffsets(sink string, after uint64) ([]uint64, error) {
	return readStore(d.store, fmt.Sprintf("dead letters of sink %q", sink), func(r storeReader) (offsets []uint64, err error) {
		prefix := codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink)
		err = r.forEachKeyFrom(codec.KeyDeadLetter(sink, after+1), prefix, func(key, _ []byte) error {
			_, offset, err := codec.SplitDeadLetterKey(key)
			offsets = append(offsets, offset)
			return err
		})
		return offsets, err
	})
}

// DropDeadLetters drops the dead letters of a sink at some offsets, in durable writes, and returns how many there were.
// Offsets without one are passed over. After an error those before it may be dropped.
func (d *DeadLetters) DropDeadLetters(ctx context.Context, sink string, offsets []uint64) (dropped int, err error) {
	for some := range slices.Chunk(offsets, lettersPerWrite) {
		n := 0
		err := d.queue.submit(ctx, func(g *group) error {
			for _, offset := range some {
				removed, err := g.deadLetters.removeLetter(sink, offset)
				if err != nil {
					return err
				}
				if removed {
					n++
				}
			}
			return nil
		}, nil)
		if err != nil {
			return dropped, err
		}
		dropped += n
	}
	return dropped, nil
}

// RequeueDeadLetters appends the changes of the dead letters of a sink at some offsets again, for that sink alone, and drops
// the letters, each with its change in one durable write: it reaches the sink in the order of the journal (I3). Letters
// whose object has a newer change stay, and are counted by reason. Offsets without a letter are passed over. After an error
// those before it may be appended.
func (d *DeadLetters) RequeueDeadLetters(ctx context.Context, sink string, offsets []uint64) (requeued int, kept map[string]int, err error) {
	kept = map[string]int{}
	for some := range slices.Chunk(offsets, lettersPerWrite) {
		n, reasons := 0, []string{}
		err := d.queue.submit(ctx, func(g *group) error {
			_ = g.batch.DeleteRange(codec.KeyRetried(sink, 0), codec.KeyRetried(sink, g.log.extent.oldest), nil) // no cursor goes back there
			for _, offset := range some {
				reason, found, err := g.deadLetters.requeueLetter(&g.log, sink, offset)
				switch {
				case err != nil:
					return err
				case reason != "":
					reasons = append(reasons, reason)
				case found:
					n++
				}
			}
			return nil
		}, nil)
		if err != nil {
			return requeued, kept, err
		}
		requeued += n
		for _, reason := range reasons {
			kept[reason]++
		}
	}
	return requeued, kept, nil
}

// requeueLetter appends the change of a dead letter to the log of the group, or returns why it stays.
func (w *deadLetterWrite) requeueLetter(log *logWrite, sink string, offset uint64) (reason string, found bool, err error) {
	store := w.letters.store
	key := codec.KeyDeadLetter(sink, offset)
	value, err := store.getValue(key)
	if size, changed := w.sizes[string(key)]; err != nil || value == nil || changed && size == 0 { // the group has dropped it
		return "", false, store.checkCorruption("dead letter", err)
	}
	d, err := w.letters.reader().decodeLetter(key, value)
	if err != nil {
		return "", false, store.checkCorruption("dead letter", err)
	}
	if d.Change.Withheld != "" {
		return reasonWithheld, true, nil
	}
	latest, err := store.isLatest(d.Change)
	if err != nil {
		return "", false, store.checkCorruption("known object", err)
	}
	if !latest || log.hasChangeOf(d.Change) { // what the group adds is not in the store yet
		return reasonNewer, true, nil
	}
	if _, err := w.removeLetter(sink, offset); err != nil {
		return "", false, err
	}
	d.Change.OnlySink = sink
	w.batch.putKey(codec.KeyRetried(sink, log.addChange(d.Change)), nil)
	return "", true, nil
}

// hasChangeOf reports whether the group has added a change of the same object.
func (w *logWrite) hasChangeOf(c *event.Change) bool {
	isSame := func(other *event.Change) bool {
		return other.Name == c.Name && other.Namespace == c.Namespace && other.Resource.String() == c.Resource.String()
	}
	return slices.ContainsFunc(w.openFrame, isSame) || slices.ContainsFunc(w.frames, func(f tailFrame) bool {
		return slices.ContainsFunc(f.records, func(r event.Record) bool { return isSame(r.Change) })
	})
}

// removeLetter drops a dead letter, and reports whether there was one.
func (w *deadLetterWrite) removeLetter(sink string, offset uint64) (bool, error) {
	key := codec.KeyDeadLetter(sink, offset)
	size, err := w.storedSize(key)
	if err != nil {
		return false, w.letters.store.checkCorruption("drop a dead letter", err)
	}
	if size == 0 {
		return false, nil
	}
	count, changed := w.counts[sink]
	if !changed {
		count = w.letters.allCounts()[sink]
	}
	count.letters--
	count.bytes -= size
	w.counts[sink] = count
	w.sizes[string(key)] = 0
	w.batch.removeKey(key)
	return true, nil
}

// isLatest reports whether c is the last that was observed of its object, so that sending it now cannot put an older state
// after a newer one (I3). A deletion is, unless another object lives under the same name. A control record, which belongs to
// its place in the stream, never is.
func (r storeReader) isLatest(c *event.Change) (bool, error) {
	if c.Type.IsControl() {
		return false, nil
	}
	if c.Type.IsBeside() { // no state follows from it
		return true, nil
	}
	object := strings.TrimPrefix(c.Namespace+"/"+c.Name, "/")
	value, err := r.getValue(codec.KeyNamed(codec.PrefixKnown, c.Resource.String(), object))
	if err != nil || value == nil {
		return c.Type == event.Deleted, err
	}
	k, err := codec.DecodeKnown([]byte(object), value)
	return c.Type != event.Deleted && k.UID == c.UID && k.ResourceVersion == c.ResourceVersion, err
}
