package journal

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// storeReader reads a store, of an exporter that runs or not, or one moment of it. Safe for concurrent use.
type storeReader struct {
	from     pebble.Reader
	unpacker *codec.FrameDecoder
}

// getValue returns a copy of the value of key, or nil when there is none.
func (r storeReader) getValue(key []byte) ([]byte, error) {
	value, closer, err := r.from.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value = append([]byte{}, value...)
	return value, closer.Close()
}

// newPrefixIter iterates over the keys that start with prefix.
func (r storeReader) newPrefixIter(prefix []byte) (*pebble.Iterator, error) {
	return r.from.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: codec.KeyAfterPrefix(prefix)})
}

// forEachKey calls f for every key that starts with prefix, in order. Key and value are valid during the call only.
func (r storeReader) forEachKey(prefix []byte, f func(key, value []byte) error) error {
	it, err := r.newPrefixIter(prefix)
	if err != nil {
		return err
	}
	for it.First(); it.Valid() && err == nil; it.Next() {
		var value []byte
		if value, err = it.ValueAndErr(); err == nil {
			err = f(it.Key(), value)
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}

// forEachName calls f for each name that has keys under a first byte, with one seek a name.
func (r storeReader) forEachName(first byte, f func(name string)) error {
	it, err := r.newPrefixIter([]byte{first})
	if err != nil {
		return err
	}
	for it.First(); it.Valid() && err == nil; {
		var name string
		if name, _, err = codec.SplitNamedKey(it.Key()); err == nil {
			f(name)
			it.SeekGE(codec.KeyAfterPrefix(codec.AppendNamePrefix(nil, first, name)))
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}

// loadResources returns what is stored of each resource, by name, but for its objects. Scopes are those of this version
// only.
func (r storeReader) loadResources() (map[string]event.StoredResource, error) {
	all := map[string]event.StoredResource{}
	return all, errors.Join(
		r.forEachKey([]byte{codec.PrefixResource}, func(key, value []byte) error {
			resource, err := codec.DecodeResource(value)
			all[string(key[1:])] = event.StoredResource{Resource: resource}
			return err
		}),
		r.forEachKey([]byte{codec.PrefixScope}, func(key, value []byte) error {
			resource, id, err := codec.SplitNamedKey(key)
			if err != nil {
				return err
			}
			s, err := codec.DecodeScope(id, value)
			stored := all[resource]
			stored.Scopes = append(stored.Scopes, s) // keys, and so IDs, come in order
			all[resource] = stored
			return err
		}))
}

// loadSinkStates returns what is stored of each sink, and refuses cursors that speak of changes that never were.
func (r storeReader) loadSinkStates(newest uint64) (map[string]sinkState, error) {
	sinks := map[string]sinkState{}
	return sinks, errors.Join(
		r.forEachKey([]byte{codec.PrefixCursor}, func(key, value []byte) error {
			name := string(key[1:])
			c, err := codec.DecodeCursor(value)
			if err == nil && c.HighestOffset() > newest {
				err = fmt.Errorf("%w: cursor of sink %q is at %d, past the newest change %d", codec.ErrMalformed, name, c.HighestOffset(), newest)
			}
			sinks[name] = sinkState{settled: true, cursor: c}
			return err
		}),
		r.forEachKey([]byte{codec.PrefixDeadLetter}, func(key, value []byte) error {
			name, _, err := codec.SplitDeadLetterKey(key)
			s := sinks[name]
			s.deadLetters++
			s.deadBytes += int64(len(key) + len(value))
			sinks[name] = s
			return err
		}))
}

// forEachDeadLetter calls each for every dead letter of a sink, in order of offsets.
func (r storeReader) forEachDeadLetter(sink string, each func(event.DeadLetter) error) error {
	return r.forEachKey(codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink), func(key, value []byte) error {
		d, err := r.decodeDeadLetter(key, value)
		if err != nil {
			return err
		}
		return each(d)
	})
}

func (r storeReader) decodeDeadLetter(key, value []byte) (event.DeadLetter, error) {
	_, offset, err := codec.SplitDeadLetterKey(key)
	if err != nil {
		return event.DeadLetter{}, err
	}
	return codec.DecodeDeadLetter(r.unpacker, offset, value)
}

// loadExtent finds the oldest and the newest frame.
func (r storeReader) loadExtent() (logExtent, error) {
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
		return ext, fmt.Errorf("%w: frames %d to %d do not follow each other", codec.ErrMalformed, oldest, newest)
	}
	return ext, nil
}

// loadEmptyExtent is the extent of a log without changes.
func (r storeReader) loadEmptyExtent() (logExtent, error) {
	value, err := r.getValue(codec.KeyEmptied)
	if err != nil {
		return logExtent{}, err
	}
	newest, err := codec.DecodeNumber(value)
	return logExtent{oldest: newest + 1, newest: newest}, err
}

// readFrameAfter reads the rest of the frame with the change after+1, or where that is older than the oldest change, the first
// frame. oldest is asked when it is settled what is read. unpack opens the frame.
func (r storeReader) readFrameAfter(
	after uint64, oldest func() uint64, unpack func(stored []byte) ([]event.Change, error),
) ([]event.Record, error) {
	it, err := r.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	if !it.SeekLT(codec.KeyFrame(after + 2)) {
		it.First()
	}
	first, h, err := frameHeaderAt(it)
	if err == nil && first+h.Count-1 <= after {
		it.Next()
		first, _, err = frameHeaderAt(it)
	}
	if err == nil && first > after+1 && after+1 >= oldest() {
		err = fmt.Errorf("%w: changes %d to %d are missing", codec.ErrMalformed, after+1, first-1) // I5
	}
	if err != nil {
		return nil, err
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	changes, err := unpack(value)
	if err != nil {
		return nil, err
	}
	records := make([]event.Record, len(changes))
	for i := range changes {
		records[i] = event.Record{Offset: first + uint64(i), Change: &changes[i]}
	}
	if first <= after {
		records = records[after+1-first:]
	}
	return records, nil
}

// frameHeaderAt reads the header of the frame it stands on.
func frameHeaderAt(it *pebble.Iterator) (first uint64, h codec.FrameHeader, err error) {
	if !it.Valid() {
		if err := it.Error(); err != nil {
			return 0, h, err
		}
		return 0, h, fmt.Errorf("%w: a frame is missing", codec.ErrMalformed)
	}
	first, ok := codec.OffsetOfFrame(it.Key())
	if !ok {
		return 0, h, fmt.Errorf("%w: frame key %x", codec.ErrMalformed, it.Key())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, h, err
	}
	h, _, err = codec.ReadFrameHeader(value)
	return first, h, err
}
