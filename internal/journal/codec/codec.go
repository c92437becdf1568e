package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// ErrMalformed says that stored bytes do not have the form docs/journal-format.md gives them.
var ErrMalformed = errors.New("malformed")

// Codes of the enumerations in stored changes. They are part of the format: append only. Code 0 means that the value
// follows as a string.
var (
	typeCodes  = []event.Type{"", event.Added, event.Updated, event.Deleted, event.Snapshot, event.Gap, event.SnapshotBegin, event.SnapshotEnd, event.Sync, event.Attributed, event.AttributionGap}
	deltaCodes = []event.Delta{"", event.DeltaAdded, event.DeltaUpdated, event.DeltaDeleted, event.DeltaReplaced, event.DeltaSync}
	classCodes = []event.Class{"", event.ClassDeleting, event.ClassSpec, event.ClassStatus, event.ClassMetadata}
)

const (
	flagCoalesced = 1 << iota
	flagFinalStateUnknown
	flagActor
	flagGap
	flagBefore
	flagAfter
	flagMore // a second byte of flags follows
	flagRedactionChanged
)

// Flags of the second byte. It is left out when it would be 0.
const (
	moreClass = 1 << iota
	moreSnapshot
	moreChanged
	morePatch
	moreOmitted
	moreWithheld
	moreLeft
	morePass
	moreKnown = 1<<iota - 1
)

// Flags of the third byte. It is there when the second byte is 0, and a fourth one, which stands for the second, follows it.
const (
	mostPrevious = 1 << iota
	mostAttribution
	mostKnown = 1<<iota - 1
)

// minChangeMeta is the least number of bytes the facts of one change take: three codes, nine strings, three numbers. It
// keeps a broken count from asking for a huge allocation.
const minChangeMeta = 15

// AppendString appends a string with its length in front.
func AppendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendTime(b []byte, t time.Time) []byte {
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}

func appendCode[T ~string](b []byte, codes []T, v T) []byte {
	for i := 1; i < len(codes); i++ {
		if codes[i] == v {
			return append(b, byte(i))
		}
	}
	return AppendString(append(b, 0), string(v))
}

// appendMeta appends the facts of c, everything but its bodies, of which it writes the lengths.
func appendMeta(b []byte, c *event.Change) []byte {
	b = appendCode(b, typeCodes, c.Type)
	b = appendCode(b, deltaCodes, c.Delta)
	more, most := moreOf(c), mostOf(c)
	switch {
	case most != 0:
		b = append(b, flagsOf(c)|flagMore, 0, most, more)
	case more != 0:
		b = append(b, flagsOf(c)|flagMore, more)
	default:
		b = append(b, flagsOf(c))
	}
	for _, s := range [...]string{
		c.Cluster, c.Resource.Group, c.Resource.Version, c.Resource.Resource, c.Resource.Kind,
		c.Namespace, c.Name, c.UID, c.ResourceVersion,
	} {
		b = AppendString(b, s)
	}
	b = binary.AppendVarint(b, c.Generation)
	b = appendTime(b, c.ObservedAt)
	if a := c.Actor; a != nil {
		b = AppendString(AppendString(AppendString(AppendString(b, a.Manager), a.Operation), a.Subresource), a.Time)
	}
	if g := c.Gap; g != nil {
		b = AppendString(AppendString(AppendString(b, g.From), g.To), g.Reason)
	}
	if more != 0 {
		b = appendMore(b, c)
	}
	if most != 0 {
		b = appendMost(b, c)
	}
	for _, body := range [...][]byte{c.Before, c.After, c.Patch} {
		if body != nil {
			b = binary.AppendUvarint(b, uint64(len(body)))
		}
	}
	return b
}

// appendMore appends what the second byte of flags announces, but for bodies.
func appendMore(b []byte, c *event.Change) []byte {
	if c.Class != "" {
		b = appendCode(b, classCodes, c.Class)
	}
	if s := c.Snapshot; s != nil {
		b = AppendString(AppendString(AppendString(b, s.ID), s.Position), s.Digest)
		b = binary.AppendVarint(b, int64(s.Count))
	}
	if c.Changed != nil {
		b = appendStrings(b, c.Changed)
	}
	if c.Omitted != nil {
		b = appendStrings(b, c.Omitted)
	}
	if c.Withheld != "" {
		b = AppendString(b, c.Withheld)
	}
	if c.Pass != "" {
		b = AppendString(b, c.Pass)
	}
	return b
}

// appendMost appends what the third byte of flags announces.
func appendMost(b []byte, c *event.Change) []byte {
	if c.Previous != "" {
		b = AppendString(b, c.Previous)
	}
	if a := c.Attribution; a != nil {
		b = AppendString(AppendString(b, a.Of), a.Certainty)
		b = appendIdentity(b, &a.By)
		if a.RequestedBy == nil {
			return append(b, 0)
		}
		b = appendIdentity(append(b, 1), a.RequestedBy)
	}
	return b
}

func appendIdentity(b []byte, i *event.Identity) []byte {
	for _, s := range [...]string{i.User, i.UID, i.Impersonator, i.Verb, i.Subresource, i.UserAgent, i.AuditID} {
		b = AppendString(b, s)
	}
	return appendTime(appendStrings(appendStrings(b, i.Groups), i.SourceIPs), i.Received)
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = AppendString(b, s)
	}
	return b
}

func flagsOf(c *event.Change) byte {
	return flag(c.Coalesced, flagCoalesced) | flag(c.FinalStateUnknown, flagFinalStateUnknown) |
		flag(c.Actor != nil, flagActor) | flag(c.Gap != nil, flagGap) |
		flag(c.Before != nil, flagBefore) | flag(c.After != nil, flagAfter) | flag(c.RedactionChanged, flagRedactionChanged)
}

func moreOf(c *event.Change) byte {
	return flag(c.Class != "", moreClass) | flag(c.Snapshot != nil, moreSnapshot) |
		flag(c.Changed != nil, moreChanged) | flag(c.Patch != nil, morePatch) |
		flag(c.Omitted != nil, moreOmitted) | flag(c.Withheld != "", moreWithheld) |
		flag(c.Left, moreLeft) | flag(c.Pass != "", morePass)
}

func mostOf(c *event.Change) byte {
	return flag(c.Previous != "", mostPrevious) | flag(c.Attribution != nil, mostAttribution)
}

func flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

// appendRaw appends the uncompressed form of a frame: the length of the facts, the facts, then all bodies as they are.
func appendRaw(b, meta []byte, changes []*event.Change) []byte {
	b = binary.AppendUvarint(b, uint64(len(meta)))
	b = append(b, meta...)
	for _, c := range changes {
		b = append(append(append(b, c.Before...), c.After...), c.Patch...)
	}
	return b
}

// decodeRaw is the inverse of appendRaw. The changes share one allocation, their strings another, and their bodies alias
// raw, which must not change afterwards.
func decodeRaw(raw []byte, count uint64) ([]event.Change, error) {
	size, n := binary.Uvarint(raw)
	if n <= 0 || size > uint64(len(raw)-n) {
		return nil, fmt.Errorf("%w: length of the facts", ErrMalformed)
	}
	facts := scanner{s: string(raw[n : n+int(size)])}
	bodies := raw[n+int(size):]
	if count > size/minChangeMeta {
		return nil, fmt.Errorf("%w: %d changes in %d bytes", ErrMalformed, count, size)
	}
	changes := make([]event.Change, count)
	for i := range changes {
		bodies = scanChange(&facts, &changes[i], bodies)
	}
	if facts.failed || len(facts.s) > 0 || len(bodies) > 0 {
		return nil, fmt.Errorf("%w: facts or bodies do not add up", ErrMalformed)
	}
	return changes, nil
}

// scanChange reads the facts of one change into c, cuts its bodies off bodies and returns the rest.
func scanChange(s *scanner, c *event.Change, bodies []byte) []byte {
	c.Type = scanCode(s, typeCodes)
	c.Delta = scanCode(s, deltaCodes)
	flags, more, most := scanFlags(s)
	for _, p := range [...]*string{
		&c.Cluster, &c.Resource.Group, &c.Resource.Version, &c.Resource.Resource, &c.Resource.Kind,
		&c.Namespace, &c.Name, &c.UID, &c.ResourceVersion,
	} {
		*p = s.string()
	}
	c.Generation = s.varint()
	c.ObservedAt = s.time()
	c.Coalesced = flags&flagCoalesced != 0
	c.FinalStateUnknown = flags&flagFinalStateUnknown != 0
	c.RedactionChanged = flags&flagRedactionChanged != 0
	if flags&flagActor != 0 {
		c.Actor = &event.Actor{Manager: s.string(), Operation: s.string(), Subresource: s.string(), Time: s.string()}
	}
	if flags&flagGap != 0 {
		c.Gap = &event.GapInfo{From: s.string(), To: s.string(), Reason: s.string()}
	}
	scanMore(s, c, more)
	scanMost(s, c, most)
	if flags&flagBefore != 0 {
		c.Before, bodies = s.cut(bodies)
	}
	if flags&flagAfter != 0 {
		c.After, bodies = s.cut(bodies)
	}
	if more&morePatch != 0 {
		c.Patch, bodies = s.cut(bodies)
	}
	return bodies
}

// scanFlags reads one, two or four bytes of flags.
func scanFlags(s *scanner) (flags, more, most byte) {
	flags = s.byte()
	if flags&flagMore == 0 {
		return flags, 0, 0
	}
	if more = s.byte(); more == 0 {
		most, more = s.byte(), s.byte()
		s.failed = s.failed || most == 0
	}
	s.failed = s.failed || more&^byte(moreKnown) != 0 || most&^byte(mostKnown) != 0
	return flags, more, most
}

// scanMost is the inverse of appendMost.
func scanMost(s *scanner, c *event.Change, most byte) {
	if most&mostPrevious != 0 {
		c.Previous = s.string()
	}
	if most&mostAttribution != 0 {
		a := &event.Attribution{Of: s.string(), Certainty: s.string()}
		scanIdentity(s, &a.By)
		if s.byte() == 1 {
			a.RequestedBy = &event.Identity{}
			scanIdentity(s, a.RequestedBy)
		}
		c.Attribution = a
	}
}

func scanIdentity(s *scanner, i *event.Identity) {
	for _, p := range [...]*string{&i.User, &i.UID, &i.Impersonator, &i.Verb, &i.Subresource, &i.UserAgent, &i.AuditID} {
		*p = s.string()
	}
	i.Groups, i.SourceIPs, i.Received = s.strings(), s.strings(), s.time()
}

// scanMore is the inverse of appendMore.
func scanMore(s *scanner, c *event.Change, more byte) {
	if more&moreClass != 0 {
		c.Class = scanCode(s, classCodes)
	}
	if more&moreSnapshot != 0 {
		c.Snapshot = &event.SnapshotInfo{ID: s.string(), Position: s.string(), Digest: s.string(), Count: int(s.varint())}
	}
	if more&moreChanged != 0 {
		c.Changed = s.strings()
	}
	if more&moreOmitted != 0 {
		c.Omitted = s.strings()
	}
	if more&moreWithheld != 0 {
		c.Withheld = s.string()
	}
	c.Left = more&moreLeft != 0
	if more&morePass != 0 {
		c.Pass = s.string()
	}
}

func scanCode[T ~string](s *scanner, codes []T) T {
	code := int(s.byte())
	if code == 0 {
		return T(s.string())
	}
	if code >= len(codes) {
		s.failed = true
		return ""
	}
	return codes[code]
}

// scanner reads the primitives of the format from the front of a string. After the first thing that is not there it is
// failed and gives zero values. Strings it returns are parts of s: one allocation backs them all.
type scanner struct {
	s      string
	failed bool
}

func (s *scanner) fail() {
	s.s, s.failed = "", true
}

func (s *scanner) byte() byte {
	if len(s.s) == 0 {
		s.fail()
		return 0
	}
	b := s.s[0]
	s.s = s.s[1:]
	return b
}

func (s *scanner) uvarint() uint64 {
	var v uint64
	for i := 0; i < len(s.s) && i < binary.MaxVarintLen64; i++ {
		b := s.s[i]
		if b < 0x80 {
			if i == binary.MaxVarintLen64-1 && b > 1 {
				break // more than 64 bits
			}
			s.s = s.s[i+1:]
			return v | uint64(b)<<(7*i)
		}
		v |= uint64(b&0x7f) << (7 * i)
	}
	s.fail()
	return 0
}

func (s *scanner) varint() int64 {
	u := s.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (s *scanner) string() string {
	n := s.uvarint()
	if n > uint64(len(s.s)) {
		s.fail()
		return ""
	}
	v := s.s[:n]
	s.s = s.s[n:]
	return v
}

// strings reads a list of strings; an empty one is not nil.
func (s *scanner) strings() []string {
	n := s.uvarint()
	if n > uint64(len(s.s)) { // each takes a byte at least
		s.fail()
		return nil
	}
	list := make([]string, n)
	for i := range list {
		list[i] = s.string()
	}
	return list
}

func (s *scanner) time() time.Time {
	sec, nsec := s.varint(), s.uvarint()
	if nsec >= uint64(time.Second) {
		s.fail()
		return time.Time{}
	}
	return time.Unix(sec, int64(nsec)).UTC()
}

// cut reads a length and cuts so many bytes off the front of b.
func (s *scanner) cut(b []byte) (head, rest []byte) {
	n := s.uvarint()
	if s.failed || n > uint64(len(b)) {
		s.fail()
		return nil, b
	}
	return b[:n:n], b[n:]
}
