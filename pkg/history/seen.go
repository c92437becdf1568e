package history

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Zone is rows of changes that may come again.
type Zone struct {
	After int64     `json:"after"` // sequence of the newest row before them
	UpTo  int64     `json:"upTo"`  // and of the last of them
	Since time.Time `json:"since"` // earlier ones do not come again; zero: all may
}

// has reports whether a file may have rows of the zone.
func (z *Zone) has(f *File) bool {
	return f.LastSequence > z.After && f.FirstSequence <= z.UpTo && !f.To.Before(z.Since)
}

// Seen is what the rows of zones are known by: 64-bit hashes, ascending, since a writer that takes a history over may find
// millions. Two changes that are taken for one need more than a thousand millions of each.
type Seen []uint64

// maxSeen bounds the memory of a Seen, to 32 MB: the rows before the newest two millions are stored again.
const maxSeen = 4 << 20

// hash returns what a row with some texts is known by. read is when it was read: the same journal sends that again. 0 stands
// for any time: a change of an object has its own version.
func hash(read int64, texts ...string) uint64 {
	var d xxhash.Digest
	d.Reset()
	var buf [256]byte
	b := buf[:0]
	for _, text := range texts {
		b = append(append(b, text...), 0)
	}
	for ; read != 0; read >>= 8 {
		b = append(b, byte(read))
	}
	_, _ = d.Write(b) // it never fails
	return d.Sum64()
}

// seenTexts are the columns of the texts that a row is known by.
var seenTexts = []int{columnCluster, columnGroup, columnResource, columnNamespace, columnName, columnUID, columnResourceVersion, columnType}

func textsOf(f *Facts) [8]string {
	return [...]string{f.Cluster, f.Group, f.Resource, f.Namespace, f.Name, f.UID, f.ResourceVersion, f.Type}
}

// Has reports whether the row of a change is stored. isVersion is set if no other change brings this version of its object:
// then a row of another writer is the same one.
func (s Seen) Has(f *Facts, isVersion bool) bool {
	if len(s) == 0 {
		return false
	}
	texts := textsOf(f)
	_, found := slices.BinarySearch(s, hash(f.ObservedAt.UnixMicro(), texts[:]...))
	if !found && isVersion {
		_, found = slices.BinarySearch(s, hash(0, texts[:]...))
	}
	return found
}

// ReadSeen reads the rows of zones. What it returns is not nil. Until it returns there is no commit.
func (w *Writer) ReadSeen(zones []Zone) (seen Seen, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen = Seen{}
	for _, f := range slices.Backward(w.manifest.Files) {
		mine := slices.DeleteFunc(slices.Clone(zones), func(z Zone) bool { return !z.has(&f) })
		if len(mine) == 0 {
			continue
		}
		if seen, err = w.addSeen(seen, f, mine); err != nil {
			return nil, err
		}
		if len(seen) >= maxSeen {
			break
		}
	}
	slices.Sort(seen)
	return seen, nil
}

// addSeen adds the rows of a file that are in a zone.
func (w *Writer) addSeen(seen Seen, f File, zones []Zone) (Seen, error) {
	file, err := w.store.open(f.Path, f.Bytes)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p, err := openParquet(file, f.Bytes)
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(seenTexts))
	for _, g := range p.RowGroups() {
		r, err := newRowReader(g, func(column int) bool {
			return column == columnSequence || column == columnObservedAt || slices.Contains(seenTexts, column)
		})
		if err != nil {
			return nil, err
		}
		for range g.NumRows() {
			c, err := r.next()
			if err != nil {
				return nil, err
			}
			if c.text(columnType) == Alive || !slices.ContainsFunc(zones, func(z Zone) bool { return z.After < c.sequence() && c.sequence() <= z.UpTo }) {
				continue
			}
			for i, column := range seenTexts {
				texts[i] = c.text(column)
			}
			seen = append(seen, hash(c.cells[columnObservedAt].Int64(), texts...))
			if c.text(columnName) != "" {
				seen = append(seen, hash(0, texts...))
			}
		}
		if err := r.close(); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

// recentHashes bounds one of the two generations of a [Recent]. Both have some 40 MB.
const recentHashes = 1 << 19

// Recent is what the newest rows are known by, for a writer of a stream in which records come again.
type Recent struct {
	stored       Seen
	older, newer map[uint64]struct{}
}

// NewRecent returns one that knows rows which are stored.
func NewRecent(stored Seen) *Recent { return &Recent{stored: stored, newer: map[uint64]struct{}{}} }

// Add reports whether a row is not known, and remembers it. isVersion is as in [Seen.Has].
func (r *Recent) Add(f *Facts, isVersion bool) bool {
	texts := textsOf(f)
	known := func(hash uint64) bool {
		_, newer := r.newer[hash]
		_, older := r.older[hash]
		return newer || older
	}
	exact, version := hash(f.ObservedAt.UnixMicro(), texts[:]...), hash(0, texts[:]...)
	if known(exact) || isVersion && known(version) || r.stored.Has(f, isVersion) {
		return false
	}
	if len(r.newer) >= recentHashes {
		r.older, r.newer = r.newer, make(map[uint64]struct{}, recentHashes)
	}
	if r.newer[exact] = (struct{}{}); f.Name != "" {
		r.newer[version] = struct{}{}
	}
	return true
}
