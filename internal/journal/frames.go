package journal

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// logExtent is what part of the log exists, in offsets and in stored bytes counted from the first frame ever written.
type logExtent struct {
	oldest, newest       uint64 // oldest is newest+1 while the log has no change
	startBytes, endBytes uint64 // bytes before the oldest frame, bytes up to and with the newest
}

// sizeBytes is the stored bytes of the log.
func (e logExtent) sizeBytes() int64 { return int64(e.endBytes - e.startBytes) }

// frameReader reads the frames of a store.
type frameReader struct{ storeReader }

// loadExtent finds the oldest and the newest frame.
func (r frameReader) loadExtent() (logExtent, error) {
	ext := logExtent{oldest: 1}
	it, err := r.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return ext, err
	}
	defer it.Close()
	if !it.First() {
		if err := it.Error(); err != nil {
			return ext, err
		}
		return r.loadEmptyExtent()
	}
	oldest, h, err := frameHeaderAt(it)
	if err != nil {
		return ext, err
	}
	ext.oldest, ext.startBytes = oldest, h.Before
	it.Last()
	newest, h, err := frameHeaderAt(it)
	if err != nil {
		return ext, err
	}
	ext.newest, ext.endBytes = newest+h.Count-1, h.Before+uint64(len(it.Key())+len(it.Value()))
	if ext.endBytes < ext.startBytes || ext.newest < ext.oldest {
		return ext, fmt.Errorf("%w: frames %d to %d do not follow each other", form.ErrMalformed, oldest, newest)
	}
	return ext, nil
}

// loadEmptyExtent is the extent of a log without frames. Offsets continue after those that a seed dropped.
func (r frameReader) loadEmptyExtent() (logExtent, error) {
	value, err := r.getValue(codec.KeyEmptied)
	if err != nil {
		return logExtent{}, err
	}
	newest, err := codec.DecodeNumber(value)
	return logExtent{oldest: newest + 1, newest: newest}, err
}

// readFrameAfter reads the change after+1 and what follows it in its frame. If that change is older than the oldest one, it
// reads the first frame. oldest is called once the frame is chosen: a trim may have deleted frames meanwhile. decode opens
// the frame.
func (r frameReader) readFrameAfter(
	after uint64, oldest func() uint64, decode func(stored []byte) ([]event.Change, error),
) ([]event.Record, error) {
	it, err := r.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	if !it.SeekLT(codec.KeyFrame(after + 2)) {
		if err := it.Error(); err != nil { // First would forget it
			return nil, err
		}
		it.First()
	}
	first, h, err := frameHeaderAt(it)
	if err == nil && first+h.Count-1 <= after {
		it.Next()
		first, _, err = frameHeaderAt(it)
	}
	if err == nil && first > after+1 && after+1 >= oldest() {
		err = fmt.Errorf("%w: changes %d to %d are missing", form.ErrMalformed, after+1, first-1) // I5
	}
	if err != nil {
		return nil, err
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	changes, err := decode(value)
	if err != nil {
		return nil, err
	}
	records := make([]event.Record, len(changes))
	for i := range changes {
		records[i] = event.Record{Offset: first + uint64(i), Change: &changes[i], InFrame: true}
	}
	if first <= after {
		records = records[after+1-first:]
	}
	return records, nil
}

// frameHeaderAt reads the header of the frame at the iterator's position.
func frameHeaderAt(it *pebble.Iterator) (first uint64, h codec.FrameHeader, err error) {
	if !it.Valid() {
		if err := it.Error(); err != nil {
			return 0, h, err
		}
		return 0, h, fmt.Errorf("%w: a frame is missing", form.ErrMalformed)
	}
	first, ok := codec.OffsetOfFrame(it.Key())
	if !ok {
		return 0, h, fmt.Errorf("%w: frame key %x", form.ErrMalformed, it.Key())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, h, err
	}
	h, _, err = codec.ReadFrameHeader(value)
	return first, h, err
}
