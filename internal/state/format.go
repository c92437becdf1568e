package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Version is the version of the format that docs/state-format.md specifies. It is raised by a change that an older exporter
// would misread.
const Version = 1

// First bytes of the keys.
const (
	keyMeta       = 'm' // single entry: the owner
	keyCheckpoint = 'a' // single entry: how far the owner's journal is covered
	keyResource   = 'r' // number
	keyScope      = 't' // number of the resource, ID of the scope
	keyKnown      = 'k' // number of the resource, key of the object
	keyLane       = 'l' // number
	keyProgress   = 'p' // number of the lane
	keyRedo       = 'x' // number; a part of a large commit
	keyCommit     = 'c' // single entry: which parts count
	keyMembers    = 's' // single entry: the sinks of the newest checkpoint; older exporters keep it as it is
	keyFormer     = 'f' // name of a sink, resource; of a sink that was a member before
	keyDeployment = 'd' // single entry: the deployment that the state belongs to; older exporters keep it as it is
	keyName       = 'n' // single entry: the name of the cluster in records, empty for its UID; older exporters keep it as it is
	keySignals    = 'j' // number; an entry of the requests of operators, see internal/signals; older exporters keep it as it is
	keyCarried    = 'e' // number of the resource, name of the sink, "/", number of the chunk: see carried.go; older exporters keep it
)

var errMalformed = errors.New("malformed entry of the state")

// meta is the record of the owner, the value of keyMeta.
type meta struct {
	version  uint64
	lease    string
	cluster  string // UID; "" if not known
	owner    Owner
	offset   uint64 // of the owner's journal: everything up to here was in the state at the take-over
	complete bool   // the state has all known objects and positions
}

func (m meta) encode() []byte {
	b := binary.AppendUvarint(nil, Version)
	b = appendString(appendString(b, m.lease), m.cluster)
	b = appendString(appendString(b, m.owner.Identity), m.owner.Journal)
	b = binary.AppendUvarint(b, m.owner.Generation)
	b = binary.AppendVarint(b, m.owner.Since.UnixMilli())
	b = binary.AppendUvarint(b, m.offset)
	if m.complete {
		return append(b, 1)
	}
	return append(b, 0)
}

// decodeMeta decodes only the version of a record in a newer format.
func decodeMeta(b string) (m meta, err error) {
	s := entryDecoder{s: b}
	if m.version = s.readUvarint(); m.version > Version {
		return m, nil
	}
	m.lease, m.cluster, m.owner.Identity, m.owner.Journal = s.readString(), s.readString(), s.readString(), s.readString()
	m.owner.Generation = s.readUvarint()
	m.owner.Since = time.UnixMilli(s.readVarint()).UTC()
	m.offset = s.readUvarint()
	m.complete = s.readByte() == 1
	return m, s.expectEnd("owner")
}

// checkpointRecord is how far the journal of the owner of this generation is covered, the value of keyCheckpoint. A record
// of another generation than the owner's is void.
type checkpointRecord struct {
	generation uint64
	offset     uint64
	takenAt    time.Time
}

func (m checkpointRecord) encode() []byte {
	b := binary.AppendUvarint(binary.AppendUvarint(nil, m.generation), m.offset)
	return binary.AppendVarint(b, m.takenAt.UnixMilli())
}

func decodeCheckpoint(b string) (m checkpointRecord, err error) {
	s := entryDecoder{s: b}
	m.generation, m.offset = s.readUvarint(), s.readUvarint()
	m.takenAt = time.UnixMilli(s.readVarint()).UTC()
	return m, s.expectEnd("checkpoint")
}

func encodeKey(first byte, number uint64, rest ...string) []byte {
	size := 1 + binary.MaxVarintLen64
	for _, r := range rest {
		size += len(r)
	}
	key := binary.AppendUvarint(append(make([]byte, 0, size), first), number)
	for _, r := range rest {
		key = append(key, r...)
	}
	return key
}

// decodeKey splits a key that has a number.
func decodeKey(key string) (number uint64, rest string, err error) {
	s := entryDecoder{s: key[1:]}
	number = s.readUvarint()
	if s.failed {
		return 0, "", fmt.Errorf("%w: key %x", errMalformed, key)
	}
	return number, s.s, nil
}

func encodeResource(r event.Resource) []byte {
	return appendString(appendString(appendString(appendString(nil, r.Group), r.Version), r.Resource), r.Kind)
}

func decodeResource(b string) (r event.Resource, err error) {
	s := entryDecoder{s: b}
	r.Group, r.Version, r.Resource, r.Kind = s.readString(), s.readString(), s.readString(), s.readString()
	return r, s.expectEnd("resource")
}

func encodeScope(s event.StoredScope) []byte {
	b := appendString(appendString(appendString(appendString(nil, s.Position), s.Snapshot), s.LostReason), s.Pass)
	if s.AheadUpTo != "" || s.Requests != "" {
		b = appendString(b, s.AheadUpTo)
	}
	if s.Requests != "" {
		b = appendString(b, s.Requests)
	}
	return b
}

func decodeScope(id, b string) (event.StoredScope, error) {
	s := entryDecoder{s: b}
	scope := event.StoredScope{ID: id, Position: s.readString(), Snapshot: s.readString(), LostReason: s.readString(), Pass: s.readString()}
	if !s.failed && s.s != "" {
		scope.AheadUpTo = s.readString()
	}
	if !s.failed && s.s != "" {
		scope.Requests = s.readString()
	}
	return scope, s.expectEnd("scope")
}

func encodeLane(sink string, lane sinks.Lane) []byte {
	return appendString(appendString(nil, sink), string(lane))
}

func decodeLane(b string) (sink string, lane sinks.Lane, err error) {
	s := entryDecoder{s: b}
	sink, lane = s.readString(), sinks.Lane(s.readString())
	return sink, lane, s.expectEnd("lane")
}

func encodeProgress(position sinks.LanePosition) []byte {
	return binary.AppendUvarint(nil, uint64(position))
}

func decodeProgress(b string) (sinks.LanePosition, error) {
	s := entryDecoder{s: b}
	position := sinks.LanePosition(s.readUvarint())
	return position, s.expectEnd("lane position")
}

// Bits of the first byte of a known object: a UID that is a lower-case UUID, and a numeric resourceVersion, have short
// forms.
const (
	knownUUID = 1 << iota
	knownNumber
)

// appendKnown appends the value of a known object. One write has several thousand of them, so the form is compact.
func appendKnown(b []byte, uid, resourceVersion string) []byte {
	at := len(b)
	b = append(b, 0)
	id, err := uuid.Parse(uid)
	if err == nil && len(uid) == 36 && !strings.ContainsAny(uid, "ABCDEF") { // only this spelling survives decoding
		b[at] |= knownUUID
		b = append(b, id[:]...)
	} else {
		b = appendString(b, uid)
	}
	if n, ok := parseVersion(resourceVersion); ok {
		b[at] |= knownNumber
		return binary.AppendUvarint(b, n)
	}
	return appendString(b, resourceVersion)
}

func decodeKnown(key, b string) (event.Known, error) {
	s := entryDecoder{s: b}
	flags := s.readByte()
	k := event.Known{Key: key}
	if flags&knownUUID != 0 {
		k.UID = uuid.UUID([]byte(s.takeBytes(16))).String()
	} else {
		k.UID = s.readString()
	}
	if flags&knownNumber != 0 {
		k.ResourceVersion = strconv.FormatUint(s.readUvarint(), 10)
	} else {
		k.ResourceVersion = s.readString()
	}
	return k, s.expectEnd("known object")
}

// parseVersion parses a resourceVersion. ok is false unless it is a canonical decimal number.
func parseVersion(text string) (version uint64, ok bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && (n == 0 && text == "0" || n > 0 && text[0] != '0' && text[0] != '+')
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// entryDecoder reads values from the front of s. After a failed read the values are worthless, and expectEnd fails.
type entryDecoder struct {
	s      string
	failed bool
}

func (s *entryDecoder) expectEnd(what string) error {
	if s.failed || s.s != "" {
		return fmt.Errorf("%w: %s", errMalformed, what)
	}
	return nil
}

// takeBytes returns the next n bytes, or at most 16 zero bytes after a failure.
func (s *entryDecoder) takeBytes(n int) string {
	if n > len(s.s) {
		s.failed, s.s = true, ""
		return string(make([]byte, min(n, 16)))
	}
	v := s.s[:n]
	s.s = s.s[n:]
	return v
}

func (s *entryDecoder) readByte() byte { return s.takeBytes(1)[0] }

func (s *entryDecoder) readUvarint() uint64 {
	var b [binary.MaxVarintLen64]byte
	n, size := binary.Uvarint(b[:copy(b[:], s.s)])
	s.takeBytes(max(size, 0))
	s.failed = s.failed || size <= 0
	return n
}

func (s *entryDecoder) readVarint() int64 {
	n := s.readUvarint()
	return int64(n>>1) ^ -int64(n&1)
}

func (s *entryDecoder) readString() string {
	n := s.readUvarint()
	if n > uint64(len(s.s)) {
		s.failed, s.s = true, ""
		return ""
	}
	return s.takeBytes(int(n))
}
