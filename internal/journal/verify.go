package journal

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/event"
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

const (
	salvagedMarker     = "SALVAGED" // file in a store that was moved aside, of which nothing more is carried over
	salvageWriteBytes  = 4 << 20    // go into one write
	carriedPart        = "; carried over: "
	carriedNothingText = "nothing"
	maxOffset          = math.MaxUint64 - 2 // larger than any
)

// salvage carries what can be read of a broken store over to the new one: dead letters, cursors, signals, and of the
// undelivered changes those before the damage, in order. The gaps of the recovery follow them (I5). Known objects are not
// carried over: what they stand for may be among the lost changes, so everything is listed again.
type salvage struct {
	from  storeReader
	to    *pebble.DB
	batch *pebble.Batch

	records map[string]codec.SinkRecord
	cursors map[string]event.Cursor // of declared sinks

	first, newest uint64 // offsets of the changes that are carried over; newest is first-1 if there are none
	// shift is added to these offsets, and to those that refer to them: dead letters of later changes keep theirs, and no
	// offset is used again.
	shift   uint64
	letters uint64 // carried over
}

// salvageStore fills the new store from one that was moved aside, and describes what was carried over. An error is one of
// writing: what cannot be read is left behind.
func salvageStore(fsys vfs.FS, moved, dir string, to *pebble.DB) (carried string, err error) {
	o, err := openDamaged(fsys, moved)
	if err != nil {
		return carriedNothingText, nil
	}
	defer o.decoder.Close()
	defer o.db.Close()
	s := &salvage{from: o.storeReader, to: to, batch: to.NewBatch()}
	defer func() { err = errors.Join(err, s.batch.Close()) }()
	s.put(codec.KeySalvaging, nil)
	if !s.copyIdentity() { // under which redaction and name the changes were made has to be known
		return carriedNothingText, nil
	}
	s.loadCursors(disk.ReadSettled(fsys, moved))
	low, highest := s.offsetBounds()
	s.measureChanges(low, maxSalvageBytes(fsys, dir))
	s.shift = max(highest, s.newest) - s.newest
	s.copyCursors()
	if err := errors.Join(s.copyLetters(), s.copyChanges()); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d changes and %d dead letters", s.newest+1-s.first, s.letters), s.flush()
}

// maxSalvageBytes is how many bytes of changes are carried over: three quarters of what is free on the disk.
func maxSalvageBytes(fsys vfs.FS, dir string) uint64 {
	usage, err := fsys.GetDiskUsage(dir)
	if err != nil {
		return math.MaxUint64
	}
	return usage.AvailBytes / 4 * 3
}

func (s *salvage) put(key, value []byte) { _ = s.batch.Set(key, value, nil) } // a batch in memory does not fail

// flush writes what was put. It is made durable with the version of the store, which is written last.
func (s *salvage) flush() error {
	err := s.batch.Commit(pebble.NoSync)
	s.batch = s.to.NewBatch()
	return err
}

func (s *salvage) flushIfLarge() error {
	if s.batch.Len() < salvageWriteBytes {
		return nil
	}
	return s.flush()
}

// copyIdentity copies what the changes depend on, and reports whether all of it can be read.
func (s *salvage) copyIdentity() bool {
	version, err := s.from.getValue(codec.KeyVersion)
	if err != nil || string(version) != codec.VersionPrefix+codec.Version {
		return false
	}
	for _, key := range [][]byte{codec.KeySecret, codec.KeyRedaction, codec.KeyCluster, codec.KeyClusterName} {
		value, err := s.from.getValue(key)
		if err != nil {
			return false
		}
		if value != nil {
			s.put(key, value)
		}
	}
	return true
}

// offsetBounds returns up to where every declared sink has settled all changes, and the highest offset that is in use.
func (s *salvage) offsetBounds() (low, highest uint64) {
	low = maxOffset // without a sink nothing waits
	for _, c := range s.cursors {
		low = min(low, c.Low)
	}
	if newest, err := (frameReader{s.from}).newestOffset(); err == nil {
		highest = newest
	}
	_ = s.from.forEachKey([]byte{codec.PrefixDeadLetter}, func(key, _ []byte) error {
		_, offset, err := codec.SplitDeadLetterKey(key)
		highest = max(highest, offset)
		return err
	})
	return low, highest
}

// loadCursors reads the records of all sinks, and the cursors of the declared ones. Those of a damaged log may be older than
// what was settled, and others cannot be read; a sink of which nothing is known counts as having settled everything. What it
// has would come again, behind newer changes (I3).
func (s *salvage) loadCursors(acknowledged []byte) {
	settled, _ := codec.DecodeLows(acknowledged)
	records, err := loadSinkRecords(s.from)
	if err != nil {
		return
	}
	s.records, s.cursors = records, map[string]event.Cursor{}
	for name, r := range records {
		if !r.Declared {
			continue
		}
		value, err := s.from.getValue(codec.KeyCursor(name))
		var c event.Cursor
		if err == nil && value != nil {
			c, err = codec.DecodeCursor(value)
		}
		low, acked := settled[name]
		if err != nil && !acked {
			low = maxOffset
		}
		c.Low = max(c.Low, low)
		for lane, offset := range c.Lanes {
			c.Lanes[lane] = max(offset, low)
		}
		s.cursors[name] = c
	}
}

// measureChanges finds the changes to carry over: from the frame with the first one after low, up to the damage.
func (s *salvage) measureChanges(low, maxBytes uint64) {
	bytes := uint64(0)
	_ = s.forEachFrame(low, func(first uint64, h codec.FrameHeader, stored []byte) error {
		changes, err := s.from.decoder.Decode(stored)
		if bytes += uint64(len(stored)); err != nil || bytes > maxBytes || s.first == 0 && first > low+1 {
			return errors.Join(err, io.EOF)
		}
		if s.first == 0 {
			s.first = first
		}
		s.newest = first + uint64(len(changes)) - 1
		return nil
	})
	if s.first == 0 {
		s.first = 1
	}
}

// forEachFrame calls f for each frame without a hole, from the one with the first change after low.
func (s *salvage) forEachFrame(low uint64, f func(first uint64, h codec.FrameHeader, stored []byte) error) error {
	it, err := s.from.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return err
	}
	defer it.Close()
	next := uint64(0)
	for ok := it.SeekLT(codec.KeyFrame(low+2)) || it.Error() == nil && it.First(); ok; ok = it.Next() {
		first, h, err := frameHeaderAt(it)
		if err == nil && next != 0 && first != next {
			err = fmt.Errorf("%w: changes %d to %d are missing", form.ErrMalformed, next, first-1)
		}
		if err == nil {
			err = f(first, h, it.Value())
		}
		if err != nil {
			return err
		}
		next = first + h.Count
	}
	return it.Error()
}

func (s *salvage) copyChanges() error {
	if s.newest < s.first {
		s.put(codec.KeyEmptied, codec.EncodeNumber(s.newest+s.shift))
		return nil
	}
	var written error
	_ = s.forEachFrame(s.first-1, func(first uint64, _ codec.FrameHeader, stored []byte) error {
		if first > s.newest {
			return io.EOF
		}
		s.put(codec.KeyFrame(first+s.shift), stored)
		written = s.flushIfLarge()
		return written
	})
	return written
}

// move returns the new offset of a change; changes that are not carried over count as settled.
func (s *salvage) move(offset uint64) uint64 {
	return min(max(offset, s.first-1), s.newest) + s.shift
}

// copyCursors copies cursors without the state of their sinks, which may be older than what the destinations have, the
// records of all sinks, and the signals, so that what is paused stays paused.
func (s *salvage) copyCursors() {
	for name, c := range s.cursors {
		c.Low, c.High, c.State = s.move(c.Low), s.move(max(c.High, c.Low)), nil
		for lane, offset := range c.Lanes {
			c.Lanes[lane] = s.move(offset)
		}
		s.put(codec.KeyCursor(name), codec.EncodeCursor(c.Normalize()))
	}
	for name, r := range s.records {
		r.Low = min(r.Low, s.newest) + s.shift
		s.put(codec.KeySinkRecord(name), codec.EncodeSinkRecord(r))
	}
	former, _ := loadFormerSinks(s.from)
	for name, f := range former {
		s.put(codec.KeyFormerSink(name), codec.EncodeFormerSink(f))
	}
	_ = s.from.forEachKey(codec.PrefixSignals, func(key, value []byte) error {
		s.put(slices.Clone(key), value)
		return nil
	})
	_ = s.from.forEachKey(codec.PrefixRetried, func(key, _ []byte) error {
		sink, offset, err := codec.SplitRetriedKey(key)
		if err == nil && offset >= s.first && offset <= s.newest {
			s.put(codec.KeyRetried(sink, offset+s.shift), nil)
		}
		return err
	})
}

func (s *salvage) copyLetters() (written error) {
	_ = s.from.forEachKey([]byte{codec.PrefixDeadLetter}, func(key, value []byte) error {
		_, offset, err := codec.SplitDeadLetterKey(key)
		if err != nil {
			return err
		}
		if _, err := codec.DecodeDeadLetter(s.from.decoder, offset, value); err == nil { // else the others can be read
			s.put(slices.Clone(key), value)
			s.letters++
			written = s.flushIfLarge()
		}
		return written
	})
	return written
}

// openDamaged opens a broken store for reading. A log with a wrong byte ends before that, and later logs are empty: what is
// left is the store at an earlier moment.
func openDamaged(fsys vfs.FS, store string) (*Offline, error) {
	o, err := openStoreForReading(fsys, store)
	if err == nil {
		return o, nil
	}
	return openStoreForReading(disk.Cut{FS: fsys, Lengths: readableLogs(fsys, store)}, store)
}

// readableLogs returns the lengths, by file, up to which the logs of a store can be read, from the first damaged one on.
func readableLogs(fsys vfs.FS, store string) map[string]int64 {
	logs, err := wal.Scan(wal.Dir{FS: fsys, Dirname: store})
	if err != nil {
		return nil
	}
	var lengths map[string]int64
	for _, l := range logs {
		_, path := l.SegmentLocation(0) // of one: there is no second directory
		if lengths != nil {
			lengths[fsys.PathBase(path)] = 0
			continue
		}
		r := l.OpenForRead()
		_, at, err := r.NextRecord()
		for err == nil {
			_, at, err = r.NextRecord()
		}
		if !errors.Is(err, io.EOF) {
			lengths = map[string]int64{fsys.PathBase(path): at.Physical}
		}
		_ = r.Close()
	}
	return lengths
}

func markSalvaged(fsys vfs.FS, moved string) error {
	return writeMarker(fsys, moved, salvagedMarker, "")
}
