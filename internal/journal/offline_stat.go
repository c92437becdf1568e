package journal

import (
	"fmt"
	"os"
	"path/filepath"
)

// OfflineStat is what is in the journal of an exporter that does not run.
type OfflineStat struct {
	Oldest, Newest uint64 // offsets; Oldest is Newest+1 before the first change
	RetainedBytes  int64  // stored bytes of changes and dead letters; what Options.MaxBytes bounds
	DiskBytes      int64  // of all files of the store
	Scopes         []ScopeStat
	Sinks          []OfflineSink // by name
	Recovery       *Recovery     // a broken store was replaced and the gaps are not announced yet; else nil
}

// Changes returns the number of changes that can be read.
func (s *OfflineStat) Changes() uint64 { return s.Newest + 1 - s.Oldest }

// ScopeStat is what is stored about one scope.
type ScopeStat struct {
	Name      string
	Position  string // resourceVersion it can be watched from; empty: it must be listed
	Known     int64  // objects that exist
	Gone      int64  // objects whose delete is journaled while the position is older
	Bodies    int64  // objects whose last state is kept
	BodyBytes int64  // of those, as stored
}

// OfflineSink is what is stored about one sink: it has a cursor, or dead letters, or both.
type OfflineSink struct {
	Name        string
	Settled     bool   // it has a cursor
	Cursor      Cursor // where Settled
	Backlog     uint64 // changes above Cursor.Low; lanes ahead of it may have settled some. Everything where not Settled
	DeadLetters int64
	DeadBytes   int64
}

// Stat counts what is stored. It reads every known object, and no body.
func (o *Offline) Stat() (OfflineStat, error) {
	disk, err := fileBytes(filepath.Join(o.dir, storeName))
	if err != nil {
		return OfflineStat{}, fmt.Errorf("journal: cannot tell the size of %s: %w", o.dir, err)
	}
	s := OfflineStat{Oldest: o.ext.oldest, Newest: o.ext.newest, RetainedBytes: o.ext.bytes(), DiskBytes: disk}
	for _, name := range o.Sinks() {
		state := o.sinks[name]
		s.RetainedBytes += state.deadBytes
		s.Sinks = append(s.Sinks, OfflineSink{
			Name: name, Settled: state.settled, Cursor: state.cursor.normal(),
			Backlog: s.Newest - min(s.Newest, max(state.cursor.Low, s.Oldest-1)), DeadLetters: state.dead, DeadBytes: state.deadBytes,
		})
	}
	names, err := scopeNames(o.db)
	if err != nil {
		return OfflineStat{}, o.checked("scopes", err)
	}
	for _, name := range names {
		scope, err := o.scopeStat(name)
		if err != nil {
			return OfflineStat{}, o.checked("scope "+name, err)
		}
		s.Scopes = append(s.Scopes, scope)
	}
	value, err := readValue(o.db, keyRecovery)
	if err == nil && value != nil {
		s.Recovery, err = decodeRecovery(value)
	}
	return s, o.checked("recovery", err)
}

func (o *Offline) scopeStat(name string) (ScopeStat, error) {
	position, err := readValue(o.db, keyPosition(name))
	if err != nil {
		return ScopeStat{}, fmt.Errorf("position: %w", err)
	}
	s := ScopeStat{Name: name, Position: string(position)}
	prefix := appendKnownPrefix(nil, name)
	err = forEach(o.db, prefix, func(key, value []byte) error {
		k, err := decodeKnown(string(key[len(prefix):]), value)
		if k.Gone {
			s.Gone++
		} else {
			s.Known++
		}
		return err
	})
	if err != nil {
		return s, err
	}
	return s, forEach(o.db, appendBodyPrefix(nil, name), func(key, value []byte) error {
		s.Bodies++
		s.BodyBytes += int64(len(key) + len(value))
		return nil
	})
}

// fileBytes adds up the files in a directory. The store itself does not count its log before it writes one.
func fileBytes(dir string) (n int64, err error) {
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
