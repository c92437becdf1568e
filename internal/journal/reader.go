package journal

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// reader reads a store, of an exporter that runs or not. Safe for concurrent use.
type reader struct {
	db       *pebble.DB
	unpacker *unpacker
}

// get returns a copy of the value of key, or nil when there is none.
func (r reader) get(key []byte) ([]byte, error) {
	value, closer, err := r.db.Get(key)
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
	return r.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyAfter(prefix)})
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
		if name, _, err = cutName(it.Key()); err == nil {
			f(name)
			it.SeekGE(keyAfter(appendNamePrefix(nil, first, name)))
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}

// eachResource calls f for the record of every resource of which anything is stored.
func (r reader) eachResource(f func(name string, r event.Resource)) error {
	return r.each([]byte{prefixResource}, func(key, value []byte) error {
		resource, err := decodeResource(value)
		f(string(key[1:]), resource)
		return err
	})
}

// eachScope calls f for every scope record.
func (r reader) eachScope(f func(resource string, s event.StoredScope)) error {
	return r.each([]byte{prefixScope}, func(key, value []byte) error {
		resource, id, err := cutName(key)
		if err != nil {
			return err
		}
		s, err := decodeScope(id, value)
		f(resource, s)
		return err
	})
}

// sinkStates returns what is stored of each sink, and refuses cursors that speak of changes that never were.
func (r reader) sinkStates(newest uint64) (map[string]sinkState, error) {
	sinks := map[string]sinkState{}
	return sinks, errors.Join(
		r.each([]byte{prefixCursor}, func(key, value []byte) error {
			name := string(key[1:])
			c, err := decodeCursor(value)
			if err == nil && c.Newest() > newest {
				err = fmt.Errorf("%w: cursor of sink %q is at %d, past the newest change %d", errMalformed, name, c.Newest(), newest)
			}
			sinks[name] = sinkState{settled: true, cursor: c}
			return err
		}),
		r.each([]byte{prefixDead}, func(key, value []byte) error {
			name, _, err := cutDead(key)
			s := sinks[name]
			s.dead++
			s.deadBytes += int64(len(key) + len(value))
			sinks[name] = s
			return err
		}))
}

// deadLetters calls each for every dead letter of a sink, in order of offsets.
func (r reader) deadLetters(sink string, each func(event.DeadLetter) error) error {
	return r.each(appendNamePrefix(nil, prefixDead, sink), func(key, value []byte) error {
		_, offset, err := cutDead(key)
		if err != nil {
			return err
		}
		d, err := decodeDead(r.unpacker, offset, value)
		if err != nil {
			return err
		}
		return each(d)
	})
}

// extent finds the oldest and the newest frame.
func (r reader) extent() (extent, error) {
	ext := extent{oldest: 1}
	it, err := r.iter([]byte{prefixFrame})
	if err != nil {
		return ext, err
	}
	defer it.Close()
	if !it.First() {
		return ext, it.Error()
	}
	oldest, h, err := frameAt(it)
	if err != nil {
		return ext, err
	}
	ext.oldest, ext.start = oldest, h.before
	it.Last()
	newest, h, err := frameAt(it)
	if err != nil {
		return ext, err
	}
	ext.newest, ext.end = newest+h.count-1, h.before+uint64(len(it.Key())+len(it.Value()))
	if ext.end < ext.start || ext.newest < ext.oldest {
		return ext, fmt.Errorf("%w: frames %d to %d do not follow each other", errMalformed, oldest, newest)
	}
	return ext, nil
}

// records reads the rest of the frame with the change after+1, or where that is older than the oldest change, the first frame.
func (r reader) records(after, oldest uint64) ([]event.Record, error) {
	it, err := r.iter([]byte{prefixFrame})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	if !it.SeekLT(keyFrame(after + 2)) {
		it.First()
	}
	first, h, err := frameAt(it)
	if err == nil && first+h.count-1 <= after {
		it.Next()
		first, _, err = frameAt(it)
	}
	if err == nil && first > after+1 && after+1 >= oldest {
		err = fmt.Errorf("%w: changes %d to %d are missing", errMalformed, after+1, first-1) // I5
	}
	if err != nil {
		return nil, err
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	changes, err := r.unpacker.changes(value)
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
func frameAt(it *pebble.Iterator) (first uint64, h frameHeader, err error) {
	if !it.Valid() {
		if err := it.Error(); err != nil {
			return 0, h, err
		}
		return 0, h, fmt.Errorf("%w: a frame is missing", errMalformed)
	}
	first, ok := offsetOfFrame(it.Key())
	if !ok {
		return 0, h, fmt.Errorf("%w: frame key %x", errMalformed, it.Key())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, h, err
	}
	h, _, err = readFrameHeader(value)
	return first, h, err
}
