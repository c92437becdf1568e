package journal

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// verify reads everything that is stored, which compares the checksum of each block.
func (r storeReader) verify() error {
	return r.forEachKey(nil, func(_, _ []byte) error { return nil })
}

// verifyStore reads a whole store before it is opened, and returns an error if it is broken. A wrong byte that is found only
// later would end the process: the store cannot be replaced while it is in use. Any other error is that of the opening.
func verifyStore(fsys vfs.FS, store string) error {
	o, err := openStoreForReading(fsys, store)
	if err == nil {
		err = errors.Join(o.verify(), o.db.Close())
		o.decoder.Close()
	}
	if errors.Is(err, ErrBroken) || errors.Is(err, form.ErrMalformed) || pebble.IsCorruptionError(err) {
		return err
	}
	return nil
}

// openStoreForReading opens a store of whose state nothing is known. It changes nothing.
func openStoreForReading(fsys vfs.FS, store string) (*Offline, error) {
	decoder, err := codec.NewFrameDecoder()
	if err != nil {
		return nil, err
	}
	o := &Offline{storeReader: storeReader{decoder: decoder}}
	if err := o.openDatabase(fsys, store); err != nil {
		decoder.Close()
		return nil, err
	}
	return o, nil
}

// describeContents names what a broken store has that no other place has: dead letters, and changes that were not delivered.
// Bytes that are missing, such as the end of a log, are not noticed while the rest is read: no number is certain.
func describeContents(fsys vfs.FS, store string) string {
	o, err := openDamaged(fsys, store)
	if err != nil {
		return contentsUnknown
	}
	defer o.decoder.Close()
	defer o.db.Close()
	var parts []string
	letters, lettersErr := deadLetterReader{o.storeReader}.countBySink()
	for _, sink := range slices.Sorted(maps.Keys(letters)) {
		parts = append(parts, fmt.Sprintf("%d dead letters of sink %s", letters[sink].letters, sink))
	}
	newest, newestErr := frameReader{o.storeReader}.newestOffset()
	if newestErr != nil {
		newest = math.MaxUint64
	}
	cursors, cursorsErr := loadCursors(o.storeReader, newest)
	for _, sink := range slices.Sorted(maps.Keys(cursors)) {
		switch left := newest - min(newest, cursors[sink].Low); {
		case left == 0 || isInternalSink(sink):
		case newestErr != nil:
			parts = append(parts, fmt.Sprintf("changes after %d that were not delivered to sink %s", cursors[sink].Low, sink))
		default:
			parts = append(parts, fmt.Sprintf("%d changes that were not delivered to sink %s", left, sink))
		}
	}
	const certainty = "as far as it can be read, it has "
	switch failed := errors.Join(lettersErr, newestErr, cursorsErr) != nil; {
	case len(parts) > 0:
		return certainty + strings.Join(parts, ", ")
	case failed:
		return contentsUnknown
	}
	return certainty + "no dead letter and no change that was not delivered"
}

// contentsUnknown is what describeContents returns of a store of which nothing can be read.
const contentsUnknown = "which dead letters and undelivered changes it has cannot be read"

// newestOffset returns the offset of the last change, from the last frame alone; 0 if there is none.
func (r frameReader) newestOffset() (uint64, error) {
	it, err := r.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return 0, err
	}
	defer it.Close()
	if !it.Last() {
		return 0, it.Error()
	}
	first, h, err := frameHeaderAt(it)
	return first + h.Count - 1, err
}
