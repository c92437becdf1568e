package consumer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// snapshotState is one snapshot: it remembers what its list told until count and digest are found right.
type snapshotState struct {
	id        string
	namespace string // "" for all
	ended     *Snapshot
	endedAt   time.Time
	verified  bool

	versions map[Key]version // what its list has told of last, without what it told to be gone; nil once verified
	digest   digest          // of that
}

// SnapshotStatus is what is known of a snapshot.
type SnapshotStatus struct {
	Resource
	Namespace, ID string
	Ended         bool // its end was told
	Verified      bool // the objects are those that its end speaks of; false while partitions lag behind
}

// Snapshots returns all snapshots that were told, in no order.
func (t *Table) Snapshots() []SnapshotStatus {
	var all []SnapshotStatus
	for name, s := range t.resources {
		for id, f := range s.snapshots {
			all = append(all, SnapshotStatus{name, f.namespace, id, f.ended != nil, f.verified})
		}
	}
	return all
}

func (s *resourceState) snapshotFor(id string) *snapshotState {
	f := s.snapshots[id]
	if f == nil {
		f = &snapshotState{id: id, versions: map[Key]version{}}
		s.snapshots[id] = f
	}
	return f
}

// applySnapshotEnd takes the end of a snapshot: what it did not have, and is older, does not exist any more. Its delete fell into a
// time of which the exporter knows nothing.
func (s *resourceState) applySnapshotEnd(r Record) {
	f := s.snapshotFor(r.Snapshot.ID)
	if f.ended != nil {
		return
	}
	f.namespace, f.ended, f.endedAt = r.Namespace, r.Snapshot, r.ObservedAt
	if last := s.newest[r.Namespace]; last == nil || last.endedAt.Before(f.endedAt) {
		s.newest[r.Namespace] = f
	}
	for key, row := range s.rows {
		if !row.deleted && f.supersedes(key, row) {
			s.setRow(key, nil)
		}
	}
	f.verifyDigest()
}

// supersedes says that the snapshot would have had the object in this or a later version, if it had still existed.
func (f *snapshotState) supersedes(key Key, row *row) bool {
	return row.snapshotID != f.id && (f.namespace == "" || f.namespace == key.Namespace) &&
		row.observedAt.Before(f.endedAt) && compareVersions(row.resourceVersion, f.ended.Position) <= 0
}

// recordVersion takes a version of an object that the list of the snapshot has told of.
func (f *snapshotState) recordVersion(key Key, v version) {
	if f.verified {
		return
	}
	if old, ok := f.versions[key]; ok {
		f.digest.addObject(key, old, -1)
		delete(f.versions, key)
	}
	if !v.deleted {
		f.digest.addObject(key, v, 1)
		f.versions[key] = v
	}
	f.verifyDigest()
}

// verifyDigest compares with what the end says. It need not be right at once, as other partitions may lag behind.
func (f *snapshotState) verifyDigest() {
	if f.ended != nil && len(f.versions) == f.ended.Count && f.digest.String() == f.ended.Digest {
		f.verified, f.versions = true, nil
	}
}

// digest is the sum, word by word and modulo 2⁶⁴, of the SHA-256 of "namespace/name/uid/resourceVersion" of each object.
type digest [4]uint64

// addObject adds an object (sign 1) or takes it away (sign -1).
func (d *digest) addObject(key Key, v version, sign int64) {
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
