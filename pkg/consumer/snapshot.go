package consumer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// snapshotState is one snapshot. It keeps the listed versions until count and digest are verified.
type snapshotState struct {
	id        string
	namespace string // "" for all namespaces
	ended     *Snapshot
	endedAt   time.Time
	position  string // of ended, unless a gap has lowered it
	verified  bool

	listed   map[Key]listedVersion // newest of each object; nil once verified
	existing int                   // of listed: those that are not deleted
	digest   digest                // of these
}

// listedVersion is a version of an object in a snapshot.
type listedVersion struct {
	version
	observedAt time.Time
}

// SnapshotStatus describes a snapshot.
type SnapshotStatus struct {
	Resource
	Namespace, ID string
	Ended         bool // the end was received
	Verified      bool // count and digest match the end; false while other partitions lag behind
}

// Snapshots returns all snapshots received, in no particular order.
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
		f = &snapshotState{id: id, listed: map[Key]listedVersion{}}
		s.snapshots[id] = f
	}
	return f
}

// applySnapshotEnd removes the objects that the snapshot lacks and that were read before it: they were deleted while the
// exporter had no journal.
func (s *resourceState) applySnapshotEnd(r Record) {
	f := s.snapshotFor(r.Snapshot.ID)
	if f.ended != nil {
		return
	}
	f.namespace, f.ended, f.endedAt, f.position = r.Namespace, r.Snapshot, r.ObservedAt, r.Snapshot.Position
	if last := s.newest[r.Namespace]; last == nil || isReadBefore(last.position, f.position, last.endedAt, f.endedAt) {
		s.newest[r.Namespace] = f
	}
	for key, row := range s.rows {
		if !row.deleted && f.supersedes(key, row) {
			s.setRow(key, nil)
		}
	}
	s.skipChecks()
	f.verifyDigest()
}

// supersedes reports whether the snapshot would contain the object, in this or a later version, if it still existed.
func (f *snapshotState) supersedes(key Key, row *row) bool {
	return row.snapshotID != f.id && (f.namespace == "" || f.namespace == key.Namespace) &&
		compareVersions(row.resourceVersion, f.position) <= 0 &&
		isReadBefore(row.readVersion, f.position, row.observedAt, f.endedAt)
}

// recordListed records the newest version of an object in the snapshot.
func (f *snapshotState) recordListed(key Key, v listedVersion) {
	if f.verified {
		return
	}
	if old, has := f.listed[key]; has && !old.deleted {
		f.digest.addObject(key, old.version, -1)
		f.existing--
	}
	if f.listed[key] = v; !v.deleted {
		f.digest.addObject(key, v.version, 1)
		f.existing++
	}
	f.verifyDigest()
}

// verifyDigest compares count and digest with the end record. A mismatch may be temporary, because other partitions can lag
// behind.
func (f *snapshotState) verifyDigest() {
	if f.ended != nil && f.existing == f.ended.Count && f.digest.String() == f.ended.Digest {
		f.verified, f.listed = true, nil
	}
}

// digest is the sum, word by word and modulo 2⁶⁴, of the SHA-256 of "namespace/name/uid/resourceVersion" of each object.
type digest [4]uint64

// addObject adds an object (sign 1) or removes it (sign -1).
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
