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

// Version is that of the format which docs/state-format.md specifies. A change that an older exporter would misread raises
// it.
const Version = 1

// First bytes of the keys.
const (
	keyMeta       = 'm' // once: who owns the state
	keyCheckpoint = 'a' // once: how far the journal of the owner is covered
	keyResource   = 'r' // number
	keyScope      = 't' // number of the resource, ID of the scope
	keyKnown      = 'k' // number of the resource, key of the object
	keyLane       = 'l' // number
	keyProgress   = 'p' // number of the lane
)

var errMalformed = errors.New("malformed entry of the state")

// meta is the record of the owner.
type meta struct {
	version  uint64
	lease    string
	cluster  string // UID, "" where it is not known
	owner    Owner
	offset   uint64 // of the owner's journal: everything up to here was in the state when it took over
	complete bool   // known objects and positions are all there
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

// decodeMeta reads no more than the version of a newer format.
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

// checkpointRecord says how far the journal of the owner of this generation is covered; one of another generation says nothing.
type checkpointRecord struct {
	generation uint64
	offset     uint64
	takenAt    time.Time // when it was taken
}

func (m checkpointRecord) encode() []byte {
	b := binary.AppendUvarint(binary.AppendUvarint(nil, m.generation), m.offset)
	return binary.AppendVarint(b, m.takenAt.UnixMilli())
}

func decodeCheckpoint(b string) (m checkpointRecord, err error) {
	s := entryDecoder{s: b}
	m.generation, m.offset = s.readUvarint(), s.readUvarint()
	m.takenAt = time.UnixMilli(s.readVarint()).UTC()
	return m, s.expectEnd("mark")
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

// decodeKey takes a key with a number apart.
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
	return appendString(appendString(appendString(appendString(nil, s.Position), s.Snapshot), s.LostReason), s.Pass)
}

func decodeScope(id, b string) (event.StoredScope, error) {
	s := entryDecoder{s: b}
	scope := event.StoredScope{ID: id, Position: s.readString(), Snapshot: s.readString(), LostReason: s.readString(), Pass: s.readString()}
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

func decodeProgress(b string) (sinks.LanePosition, error) {
	s := entryDecoder{s: b}
	place := sinks.LanePosition(s.readUvarint())
	return place, s.expectEnd("place")
}

// Bits of the first byte of a known object: the usual UID and the usual resourceVersion are numbers.
const (
	knownUUID = 1 << iota
	knownNumber
)

// appendKnown appends an identity. Its form is one of several thousand in a write, so it is short.
func appendKnown(b []byte, uid, resourceVersion string) []byte {
	at := len(b)
	b = append(b, 0)
	if id, err := uuid.Parse(uid); err == nil && len(uid) == 36 && !strings.ContainsAny(uid, "ABCDEF") { // any other spelling would come back changed
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

// parseVersion reads a resourceVersion that is the plain number it should be.
func parseVersion(text string) (uint64, bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && (n == 0 && text == "0" || n > 0 && text[0] != '0' && text[0] != '+')
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// entryDecoder takes values from the front of a text.
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

// takeBytes returns n bytes, zeros where there are fewer.
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
