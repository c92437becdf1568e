package journal

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// OfflineStat is what is in the journal of an exporter that does not run.
type OfflineStat struct {
	Oldest, Newest uint64            // offsets; Oldest is Newest+1 before the first change
	RetainedBytes  int64             // stored bytes of changes, known objects, bodies, dead letters and signals: what Options.MaxBytes bounds
	ChangeBytes    int64             // of changes alone
	DiskBytes      int64             // of all files of the store
	Resources      []ResourceStat    // by name
	Sinks          []OfflineSinkStat // by name
	Signals        map[uint64][]byte // as [Identity.StoreSignals] stored them
	Recovery       *Recovery         // a broken store was replaced and its gaps are not emitted yet; else nil
}

// ChangeCount returns the number of changes that can be read.
func (s *OfflineStat) ChangeCount() uint64 { return s.Newest + 1 - s.Oldest }

// ResourceStat is what is stored about one resource.
type ResourceStat struct {
	event.StoredResource
	Name       string
	Known      int64 // objects that exist
	KnownBytes int64 // of those, as stored
	Bodies     int64 // objects with a body
	BodyBytes  int64 // of those, as stored
}

// OfflineSinkStat is what is stored about one sink: it has a cursor or dead letters, or it was removed before it had
// received everything.
type OfflineSinkStat struct {
	SinkStat
	Settled bool         // it has a cursor
	Cursor  event.Cursor // where Settled
	Backlog uint64       // changes above Cursor.Low; lanes ahead of it may have settled some. Everything where not Settled
	Removed time.Time    // when the sink was last removed from the configuration, where Unsent is not 0
	Unsent  uint64       // changes that were not sent to it because of that
}

// Stat counts what is stored. It reads everything, so that no wrong byte goes unnoticed.
func (o *Offline) Stat() (OfflineStat, error) {
	if err := o.verify(); err != nil {
		return OfflineStat{}, o.wrapReadError("verify all that is stored", err)
	}
	disk, err := dirBytes(filepath.Join(o.dir, storeName))
	if err != nil {
		return OfflineStat{}, fmt.Errorf("journal: cannot measure the size of %s: %w", o.dir, err)
	}
	s := OfflineStat{Oldest: o.extent.oldest, Newest: o.extent.newest, RetainedBytes: o.extent.sizeBytes(), ChangeBytes: o.extent.sizeBytes(), DiskBytes: disk}
	for _, name := range o.Sinks() {
		cursor, settled := o.cursors[name]
		dead, record := o.deadLetters[name], o.records[name]
		s.RetainedBytes += dead.bytes
		s.Sinks = append(s.Sinks, OfflineSinkStat{
			SinkStat: SinkStat{Name: name, DeadLetters: dead.letters, DeadBytes: dead.bytes}, Settled: settled, Cursor: cursor.Normalize(),
			Backlog: s.Newest - min(s.Newest, max(cursor.Low, s.Oldest-1)), Removed: record.Removed, Unsent: record.Unsent,
		})
	}
	if s.Resources, err = o.countResources(); err != nil {
		return OfflineStat{}, o.wrapReadError("resources", err)
	}
	for _, r := range s.Resources {
		s.RetainedBytes += r.KnownBytes + r.BodyBytes
	}
	var size int64
	if s.Signals, size, err = loadSignals(o.storeReader); err != nil {
		return OfflineStat{}, o.wrapReadError("signals", err)
	}
	s.RetainedBytes += size
	value, err := o.getValue(codec.KeyRecovery)
	if err == nil && value != nil {
		s.Recovery, err = codec.DecodeRecovery(value)
	}
	return s, o.wrapReadError("recovery", err)
}

// countResources counts what is stored of each resource.
func (o *Offline) countResources() ([]ResourceStat, error) {
	found := map[string]*ResourceStat{}
	of := func(name string) *ResourceStat {
		if found[name] == nil {
			found[name] = &ResourceStat{Name: name}
		}
		return found[name]
	}
	stored, err := loadResources(o.storeReader)
	for name, r := range stored {
		of(name).StoredResource = r
	}
	err = errors.Join(err,
		o.countKeys(codec.PrefixKnown, func(name string, bytes int64) { of(name).Known++; of(name).KnownBytes += bytes }),
		o.countKeys(codec.PrefixBody, func(name string, bytes int64) { of(name).Bodies++; of(name).BodyBytes += bytes }),
	)
	var all []ResourceStat
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[name])
	}
	return all, err
}

// countKeys calls f with the name and the stored bytes of everything under a first byte.
func (o *Offline) countKeys(first byte, f func(name string, bytes int64)) error {
	return o.forEachKey([]byte{first}, func(key, value []byte) error {
		name, _, err := codec.SplitNamedKey(key)
		f(name, int64(len(key)+len(value)))
		return err
	})
}

// dirBytes adds up the files in a directory. The store itself does not count its log before it writes one.
func dirBytes(dir string) (n int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		n += info.Size()
	}
	return n, nil
}
