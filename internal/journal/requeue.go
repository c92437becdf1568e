package journal

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// lettersPerWrite bounds the dead letters that one write reads, so that others do not wait for it.
const lettersPerWrite = 32

// Reasons why a dead letter is not appended again.
const (
	reasonNewer    = "a newer change of the object was observed, or it is a control record; it would be out of order"
	reasonWithheld = "its body could not be redacted and was not kept"
)

// reasonTakenOver is the reason of a dead letter that was retried in vain.
const reasonTakenOver = "it was retried, and another exporter has taken over before that was known to be delivered"

// DeadLetterOffsets returns the offsets of the dead letters of a sink, ascending. It reads the disk.
func (d *DeadLetters) DeadLetterOffsets(sink string) (offsets []uint64, err error) {
	release, err := d.store.acquire()
	if err != nil {
		return nil, err
	}
	defer release()
	err = d.reader().forEachKey(codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink), func(key, _ []byte) error {
		_, offset, err := codec.SplitDeadLetterKey(key)
		offsets = append(offsets, offset)
		return err
	})
	return offsets, d.store.checkCorruption(fmt.Sprintf("dead letters of sink %q", sink), err)
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
	if err != nil || value == nil || w.isRemoved(key) {
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

// isRemoved reports whether the group has dropped a dead letter.
func (w *deadLetterWrite) isRemoved(key []byte) bool {
	size, changed := w.sizes[string(key)]
	return changed && size == 0
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
