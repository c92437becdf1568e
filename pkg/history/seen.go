package history

import (
	"errors"
	"io"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/parquet-go/parquet-go"
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

// seenColumns is what a change is known by.
type seenColumns struct {
	Sequence        int64     `parquet:"sequence,delta"`
	Cluster         string    `parquet:"cluster,dict"`
	Group           string    `parquet:"group,dict"`
	Resource        string    `parquet:"resource,dict"`
	Namespace       string    `parquet:"namespace,dict"`
	Name            string    `parquet:"name,dict"`
	UID             string    `parquet:"uid,dict"`
	ResourceVersion string    `parquet:"resource_version"`
	Type            string    `parquet:"type,dict"`
	ObservedAt      time.Time `parquet:"observed_at,timestamp(microsecond)"`
}

// hash returns what a row is known by. read is when it was read: the same journal sends that again. 0 stands for any time: a
// change of an object has its own version.
func (c *seenColumns) hash(read int64) uint64 {
	var d xxhash.Digest
	d.Reset()
	var buf [256]byte
	b := buf[:0]
	for _, text := range [...]string{c.Cluster, c.Group, c.Resource, c.Namespace, c.Name, c.UID, c.ResourceVersion, c.Type} {
		b = append(append(b, text...), 0)
	}
	for ; read != 0; read >>= 8 {
		b = append(b, byte(read))
	}
	_, _ = d.Write(b) // it never fails
	return d.Sum64()
}

// Has reports whether the row of a change is stored. isVersion is set if no other change brings this version of its object:
// then a row of another writer is the same one.
func (s Seen) Has(f *Facts, isVersion bool) bool {
	if len(s) == 0 {
		return false
	}
	c := seenColumns{0, f.Cluster, f.Group, f.Resource, f.Namespace, f.Name, f.UID, f.ResourceVersion, f.Type, f.ObservedAt}
	_, found := slices.BinarySearch(s, c.hash(f.ObservedAt.UnixMicro()))
	if !found && isVersion {
		_, found = slices.BinarySearch(s, c.hash(0))
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
	r := parquet.NewGenericReader[seenColumns](p)
	defer r.Close()
	for buf := make([]seenColumns, 256); ; {
		n, err := r.Read(buf)
		for i := range buf[:n] {
			c := &buf[i]
			if c.Type == Alive || !slices.ContainsFunc(zones, func(z Zone) bool { return z.After < c.Sequence && c.Sequence <= z.UpTo }) {
				continue
			}
			seen = append(seen, c.hash(c.ObservedAt.UnixMicro()))
			if c.Name != "" {
				seen = append(seen, c.hash(0))
			}
		}
		if errors.Is(err, io.EOF) {
			return seen, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
