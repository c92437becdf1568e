package consumer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// frame is one snapshot: it remembers what its list told until count and digest are found right.
type frame struct {
	id        string
	namespace string // "" for all
	ended     *Snapshot
	endedAt   time.Time
	verified  bool

	at     map[Key]version // what its list has told of last, without what it told to be gone; nil once verified
	digest digest          // of that
}

// Framed is what is known of a snapshot.
type Framed struct {
	Resource
	Namespace, ID string
	Ended         bool // its end was told
	Verified      bool // the objects are those that its end speaks of; false while partitions lag behind
}

// Snapshots returns all snapshots that were told, in no order.
func (t *Table) Snapshots() []Framed {
	var all []Framed
	for name, s := range t.resources {
		for id, f := range s.snapshots {
			all = append(all, Framed{name, f.namespace, id, f.ended != nil, f.verified})
		}
	}
	return all
}

func (s *resource) frame(id string) *frame {
	f := s.snapshots[id]
	if f == nil {
		f = &frame{id: id, at: map[Key]version{}}
		s.snapshots[id] = f
	}
	return f
}

// end takes the end of a snapshot: what it did not have, and is older, does not exist any more. Its delete fell into a
// time of which the exporter knows nothing.
func (s *resource) end(r Record) {
	f := s.frame(r.Snapshot.ID)
	if f.ended != nil {
		return
	}
	f.namespace, f.ended, f.endedAt = r.Namespace, r.Snapshot, r.ObservedAt
	if last := s.newest[r.Namespace]; last == nil || last.endedAt.Before(f.endedAt) {
		s.newest[r.Namespace] = f
	}
	for key, row := range s.rows {
		if !row.gone && f.supersedes(key, row) {
			s.put(key, nil)
		}
	}
	f.verify()
}

// supersedes says that the snapshot would have had the object in this or a later version, if it had still existed.
func (f *frame) supersedes(key Key, row *row) bool {
	return row.under != f.id && (f.namespace == "" || f.namespace == key.Namespace) &&
		row.observedAt.Before(f.endedAt) && compare(row.resourceVersion, f.ended.Position) <= 0
}

// told takes a version of an object that the list of the snapshot has told of.
func (f *frame) told(key Key, v version) {
	if f.verified {
		return
	}
	if old, ok := f.at[key]; ok {
		f.digest.add(key, old, -1)
		delete(f.at, key)
	}
	if !v.gone {
		f.digest.add(key, v, 1)
		f.at[key] = v
	}
	f.verify()
}

// verify compares with what the end says. It need not be right at once, as other partitions may lag behind.
func (f *frame) verify() {
	if f.ended != nil && len(f.at) == f.ended.Count && f.digest.String() == f.ended.Digest {
		f.verified, f.at = true, nil
	}
}

// digest is the sum, word by word and modulo 2⁶⁴, of the SHA-256 of "namespace/name/uid/resourceVersion" of each object.
type digest [4]uint64

// add adds an object (sign 1) or takes it away (sign -1).
func (d *digest) add(key Key, v version, sign int64) {
	sum := sha256.Sum256([]byte(key.Namespace + "/" + key.Name + "/" + v.uid + "/" + v.resourceVersion))
	for i := range d {
		d[i] += uint64(sign) * binary.BigEndian.Uint64(sum[8*i:])
	}
}

func (d *digest) String() string {
	var b [32]byte
	for i, word := range d {
		binary.BigEndian.PutUint64(b[8*i:], word)
	}
	return hex.EncodeToString(b[:])
}
