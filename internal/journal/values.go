package journal

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// formatVersion is the version of the whole layout. A change that an older exporter would misread raises it.
const formatVersion = 4

// oldestFormat is the oldest version that is read, see upgrade.
const oldestFormat = 1

const formatMagic = "kubecdc journal "

func encodeVersion() []byte {
	return fmt.Appendf(nil, "%s%d", formatMagic, formatVersion)
}

// decodeVersion returns 0 for what is not a version at all.
func decodeVersion(b []byte) (version uint64) {
	if _, err := fmt.Sscanf(string(b), formatMagic+"%d", &version); err != nil {
		return 0
	}
	return version
}

const (
	cursorFormat = 3
	deadFormat   = 1
	knownSummary = 2 // a bit: the resourceVersion is a string and a summary follows
)

func encodeCursor(c event.Cursor) []byte {
	b := binary.AppendUvarint([]byte{cursorFormat}, c.Low)
	b = binary.AppendUvarint(b, c.High)
	b = appendString(b, c.Layout)
	b = binary.AppendUvarint(b, uint64(len(c.Lanes)))
	for _, lane := range slices.Sorted(maps.Keys(c.Lanes)) {
		b = binary.AppendUvarint(appendString(b, lane), c.Lanes[lane])
	}
	return appendString(b, string(c.State))
}

func decodeCursor(b []byte) (event.Cursor, error) {
	s := scanner{s: string(b)}
	format := s.byte()
	if format < 1 || format > cursorFormat {
		return event.Cursor{}, fmt.Errorf("%w: cursor format", errMalformed)
	}
	c := event.Cursor{Low: s.uvarint()}
	c.High = c.Low
	if format >= 3 { // what older versions wrote names the lanes above Low
		c.High = s.uvarint()
	}
	c.Layout = s.string()
	n := s.uvarint()
	if n > uint64(len(s.s)/2) {
		s.fail()
	} else if n > 0 {
		c.Lanes = make(map[string]uint64, n)
	}
	for range n {
		if s.failed {
			break
		}
		lane := s.string()
		c.Lanes[lane] = s.uvarint()
	}
	if format >= 2 { // what version 1 wrote has no state
		if state := s.string(); state != "" {
			c.State = []byte(state)
		}
	}
	if s.failed || len(s.s) > 0 {
		return event.Cursor{}, fmt.Errorf("%w: cursor", errMalformed)
	}
	return c, nil
}

func appendKnown(b []byte, k *event.Known) []byte {
	if k.Summary == "" {
		return append(appendString(append(b, 0), k.UID), k.ResourceVersion...)
	}
	b = appendString(append(b, knownSummary), k.UID)
	return append(appendString(b, k.ResourceVersion), k.Summary...)
}

// decodeKnown keeps nothing of key and value.
func decodeKnown(key, value []byte) (event.Known, error) {
	s := scanner{s: string(value)}
	state := s.byte()
	k := event.Known{Key: string(key), UID: s.string()}
	if state&knownSummary == 0 {
		k.ResourceVersion = s.s
	} else {
		k.ResourceVersion = s.string()
		k.Summary = s.s
	}
	if s.failed || state&^knownSummary != 0 {
		return event.Known{}, fmt.Errorf("%w: known object %q", errMalformed, key)
	}
	return k, nil
}

func encodeResource(r event.Resource) []byte {
	return appendString(appendString(appendString(appendString(nil, r.Group), r.Version), r.Resource), r.Kind)
}

func decodeResource(b []byte) (event.Resource, error) {
	s := scanner{s: string(b)}
	r := event.Resource{Group: s.string(), Version: s.string(), Resource: s.string(), Kind: s.string()}
	if s.failed || len(s.s) > 0 {
		return event.Resource{}, fmt.Errorf("%w: resource", errMalformed)
	}
	return r, nil
}

func encodeScope(s event.StoredScope) []byte {
	return appendString(appendString(appendString(appendString(nil, s.Position), s.Snapshot), s.Lost), s.Pass)
}

func decodeScope(id string, b []byte) (event.StoredScope, error) {
	s := scanner{s: string(b)}
	scope := event.StoredScope{ID: id, Position: s.string(), Snapshot: s.string(), Lost: s.string(), Pass: s.string()}
	if s.failed || len(s.s) > 0 {
		return event.StoredScope{}, fmt.Errorf("%w: scope %q", errMalformed, id)
	}
	return scope, nil
}

func encodeRecovery(r Recovery) []byte {
	return appendString(appendString(nil, r.Reason), r.MovedTo)
}

func decodeRecovery(b []byte) (*Recovery, error) {
	s := scanner{s: string(b)}
	r := &Recovery{Reason: s.string(), MovedTo: s.string()}
	if s.failed || len(s.s) > 0 {
		return nil, fmt.Errorf("%w: recovery", errMalformed)
	}
	return r, nil
}

// encodeDead writes a dead letter; its change is stored as a frame of one.
func encodeDead(p *packer, d *event.DeadLetter) []byte {
	b := appendString(appendTime([]byte{deadFormat}, d.Time), d.Reason)
	return append(b, p.frame(frameHeader{count: 1}, []*event.Change{d.Change})...)
}

func decodeDead(u *unpacker, offset uint64, value []byte) (event.DeadLetter, error) {
	s := scanner{s: string(value)}
	if s.byte() != deadFormat {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter format", errMalformed)
	}
	d := event.DeadLetter{Offset: offset, Time: s.time(), Reason: s.string()}
	if s.failed {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter", errMalformed)
	}
	changes, err := u.changes([]byte(s.s))
	if err != nil {
		return event.DeadLetter{}, err
	}
	if len(changes) != 1 {
		return event.DeadLetter{}, fmt.Errorf("%w: dead letter of %d changes", errMalformed, len(changes))
	}
	d.Change = &changes[0]
	return d, nil
}
