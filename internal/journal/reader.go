package journal

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// reader reads a store, of an exporter that runs or not, or one moment of it. Safe for concurrent use.
type reader struct {
	from     pebble.Reader
	unpacker *codec.Unpacker
}

// get returns a copy of the value of key, or nil when there is none.
func (r reader) get(key []byte) ([]byte, error) {
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

// iter iterates over the keys that start with prefix.
func (r reader) iter(prefix []byte) (*pebble.Iterator, error) {
	return r.from.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: codec.KeyAfter(prefix)})
}

// each calls f for every key that starts with prefix, in order. Key and value are valid during the call only.
func (r reader) each(prefix []byte, f func(key, value []byte) error) error {
	it, err := r.iter(prefix)
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

// eachName calls f for each name that has keys under a first byte, with one seek a name.
func (r reader) eachName(first byte, f func(name string)) error {
	it, err := r.iter([]byte{first})
	if err != nil {
		return err
	}
	for it.First(); it.Valid() && err == nil; {
		var name string
		if name, _, err = codec.CutName(it.Key()); err == nil {
			f(name)
			it.SeekGE(codec.KeyAfter(codec.AppendNamePrefix(nil, first, name)))
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}

// storedResources returns what is stored of each resource, by name, but for its objects. Scopes are those of this version
// only.
func (r reader) storedResources() (map[string]event.StoredResource, error) {
	all := map[string]event.StoredResource{}
	return all, errors.Join(
		r.each([]byte{codec.PrefixResource}, func(key, value []byte) error {
			resource, err := codec.DecodeResource(value)
			all[string(key[1:])] = event.StoredResource{Resource: resource}
			return err
		}),
		r.each([]byte{codec.PrefixScope}, func(key, value []byte) error {
			resource, id, err := codec.CutName(key)
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

// sinkStates returns what is stored of each sink, and refuses cursors that speak of changes that never were.
func (r reader) sinkStates(newest uint64) (map[string]sinkState, error) {
	sinks := map[string]sinkState{}
	return sinks, errors.Join(
		r.each([]byte{codec.PrefixCursor}, func(key, value []byte) error {
			name := string(key[1:])
			c, err := codec.DecodeCursor(value)
			if err == nil && c.Newest() > newest {
				err = fmt.Errorf("%w: cursor of sink %q is at %d, past the newest change %d", codec.ErrMalformed, name, c.Newest(), newest)
			}
			sinks[name] = sinkState{settled: true, cursor: c}
			return err
		}),
		r.each([]byte{codec.PrefixDead}, func(key, value []byte) error {
			name, _, err := codec.CutDead(key)
			s := sinks[name]
			s.dead++
			s.deadBytes += int64(len(key) + len(value))
			sinks[name] = s
			return err
		}))
}

// deadLetters calls each for every dead letter of a sink, in order of offsets.
func (r reader) deadLetters(sink string, each func(event.DeadLetter) error) error {
	return r.each(codec.AppendNamePrefix(nil, codec.PrefixDead, sink), func(key, value []byte) error {
		d, err := r.deadLetter(key, value)
		if err != nil {
			return err
		}
		return each(d)
	})
}

func (r reader) deadLetter(key, value []byte) (event.DeadLetter, error) {
	_, offset, err := codec.CutDead(key)
	if err != nil {
		return event.DeadLetter{}, err
	}
	return codec.DecodeDead(r.unpacker, offset, value)
}

// extent finds the oldest and the newest frame.
func (r reader) extent() (extent, error) {
	ext := extent{oldest: 1}
	it, err := r.iter([]byte{codec.PrefixFrame})
	if err != nil {
		return ext, err
	}
	defer it.Close()
	if !it.First() {
		if err := it.Error(); err != nil {
			return ext, err
		}
		return r.emptied()
	}
	oldest, h, err := frameAt(it)
	if err != nil {
		return ext, err
	}
	ext.oldest, ext.start = oldest, h.Before
	it.Last()
	newest, h, err := frameAt(it)
	if err != nil {
		return ext, err
	}
	ext.newest, ext.end = newest+h.Count-1, h.Before+uint64(len(it.Key())+len(it.Value()))
	if ext.end < ext.start || ext.newest < ext.oldest {
		return ext, fmt.Errorf("%w: frames %d to %d do not follow each other", codec.ErrMalformed, oldest, newest)
	}
	return ext, nil
}

// emptied is the extent of a log without changes.
func (r reader) emptied() (extent, error) {
	value, err := r.get(codec.KeyEmptied)
	if err != nil {
		return extent{}, err
	}
	newest, err := codec.DecodeNumber(value)
	return extent{oldest: newest + 1, newest: newest}, err
}

// records reads the rest of the frame with the change after+1, or where that is older than the oldest change, the first
// frame. oldest is asked when it is settled what is read. unpack opens the frame.
func (r reader) records(
	after uint64, oldest func() uint64, unpack func(stored []byte) ([]event.Change, error),
) ([]event.Record, error) {
	it, err := r.iter([]byte{codec.PrefixFrame})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	if !it.SeekLT(codec.KeyFrame(after + 2)) {
		it.First()
	}
	first, h, err := frameAt(it)
	if err == nil && first+h.Count-1 <= after {
		it.Next()
		first, _, err = frameAt(it)
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

// frameAt reads the header of the frame it stands on.
func frameAt(it *pebble.Iterator) (first uint64, h codec.FrameHeader, err error) {
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
