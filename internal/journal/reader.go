package journal

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
)

// storeReader reads a store: that of a running exporter, that of a stopped one, or a snapshot of either. Safe for concurrent
// use.
type storeReader struct {
	from    pebble.Reader
	decoder *codec.FrameDecoder
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

func (r storeReader) newPrefixIter(prefix []byte) (*pebble.Iterator, error) {
	return r.from.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: codec.KeyAfterPrefix(prefix)})
}

// forEachKey calls f for every key that starts with prefix, in order. Key and value are valid during the call only.
func (r storeReader) forEachKey(prefix []byte, f func(key, value []byte) error) error {
	return r.forEachKeyFrom(prefix, prefix, f)
}

// forEachKeyFrom is forEachKey for the keys that are not below from.
func (r storeReader) forEachKeyFrom(from, prefix []byte, f func(key, value []byte) error) error {
	it, err := r.newPrefixIter(prefix)
	if err != nil {
		return err
	}
	for it.SeekGE(from); it.Valid() && err == nil; it.Next() {
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
