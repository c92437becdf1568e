package journal

import (
	"errors"
	"fmt"
	"maps"
	"sync"

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
	release, err := d.store.acquire()
	if err != nil {
		return nil, err
	}
	defer release()
	newest, err := d.reader().newestLetters(sink, limit)
	return newest, d.store.checkCorruption(fmt.Sprintf("dead letters of sink %q", sink), err)
}

// DeadLettersAfter returns at most limit dead letters of a sink behind an offset, in order of offsets. It reads the disk. A
// sink that is not known has none.
func (d *DeadLetters) DeadLettersAfter(sink string, after uint64, limit int) ([]event.DeadLetter, error) {
	release, err := d.store.acquire()
	if err != nil {
		return nil, err
	}
	defer release()
	letters, err := d.reader().lettersAfter(sink, after, limit)
	return letters, d.store.checkCorruption(fmt.Sprintf("dead letters of sink %q", sink), err)
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

// updateCondition sets whether the bound is reached.
func (d *DeadLetters) updateCondition() {
	d.condition.Update(d.fullProblem(), "bytes", d.totalBytes(), "maxDeadLetters", d.maxBytes)
}

// totalBytes are the stored bytes of all dead letters.
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

// loadFromStore counts what is stored.
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

// deadLetterWrite is what a group does to dead letters.
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

// deadLetterReader reads the dead letters of a store.
type deadLetterReader struct{ storeReader }

// countBySink returns how many dead letters each sink has.
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
func (r deadLetterReader) lettersAfter(sink string, after uint64, limit int) (letters []event.DeadLetter, err error) {
	it, err := r.newPrefixIter(codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.SeekGE(codec.KeyDeadLetter(sink, after+1)); it.Valid() && len(letters) < limit; it.Next() {
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

// newestLetters returns at most limit dead letters of a sink, that with the highest offset first.
func (r deadLetterReader) newestLetters(sink string, limit int) (newest []event.DeadLetter, err error) {
	it, err := r.newPrefixIter(codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.Last(); it.Valid() && len(newest) < limit; it.Prev() {
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		d, err := r.decodeLetter(it.Key(), value)
		if err != nil {
			return nil, err
		}
		newest = append(newest, d)
	}
	return newest, it.Error()
}

func (r deadLetterReader) decodeLetter(key, value []byte) (event.DeadLetter, error) {
	_, offset, err := codec.SplitDeadLetterKey(key)
	if err != nil {
		return event.DeadLetter{}, err
	}
	return codec.DecodeDeadLetter(r.decoder, offset, value)
}
