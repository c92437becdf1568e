package state

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// membersRecord names the sinks that have settled the checkpoint of this generation, and those that were members before, the
// value of keyMembers. It is void if its generation is not that of the newest checkpoint: an older exporter has written
// that.
type membersRecord struct {
	generation uint64
	sinks      []string
	former     []string
}

func (m membersRecord) encode() []byte {
	b := binary.AppendUvarint(nil, m.generation)
	for _, names := range [][]string{m.sinks, m.former} {
		b = binary.AppendUvarint(b, uint64(len(names)))
		for _, name := range names {
			b = appendString(b, name)
		}
	}
	return b
}

func decodeMembers(b string) (m membersRecord, err error) {
	s := entryDecoder{s: b}
	m.generation = s.readUvarint()
	for _, names := range []*[]string{&m.sinks, &m.former} {
		for n := s.readUvarint(); n > 0 && !s.failed; n-- {
			*names = append(*names, s.readString())
		}
	}
	return m, s.expectEnd("member sinks")
}

// formerKey is the key of the position up to which a former sink received everything of a resource.
func formerKey(sink string, r event.Resource) []byte {
	return append(appendString([]byte{keyFormer}, sink), r.String()...)
}

func encodeFormer(p event.ResourcePosition) []byte {
	return appendString(appendString(appendString(nil, p.Resource.Version), p.Resource.Kind), p.Position)
}

func decodeFormer(key, value string) (sink string, p event.ResourcePosition, err error) {
	k, v := entryDecoder{s: key[1:]}, entryDecoder{s: value}
	sink = k.readString()
	p.Resource = event.ParseResourceName(k.s)
	p.Resource.Version, p.Resource.Kind, p.Position = v.readString(), v.readString(), v.readString()
	v.failed = v.failed || k.failed
	return sink, p, v.expectEnd("former sink")
}

// decodeMembers returns the members of the newest checkpoint; nil if they are not known.
func (t *table) decodeMembers(checkpoint checkpointRecord) (*journal.Members, error) {
	value, ok := t.others[string(keyMembers)]
	if !ok {
		return nil, nil
	}
	record, err := decodeMembers(value)
	if err != nil || record.generation != checkpoint.generation {
		return nil, err
	}
	positions := map[string][]event.ResourcePosition{}
	for key, value := range t.others {
		if key[0] != keyFormer {
			continue
		}
		sink, p, err := decodeFormer(key, value)
		if err != nil {
			return nil, err
		}
		positions[sink] = append(positions[sink], p)
	}
	m := &journal.Members{Sinks: record.sinks}
	for _, name := range record.former {
		slices.SortFunc(positions[name], func(a, b event.ResourcePosition) int {
			return strings.Compare(a.Resource.String(), b.Resource.String())
		})
		m.Former = append(m.Former, event.FormerSink{Name: name, Positions: positions[name]})
	}
	return m, nil
}

// withoutPositions returns the sinks of a state whose positions are lost as former ones. Those that are configured get the
// gap that all get.
func withoutPositions(lost *journal.Members) *journal.Members {
	if lost == nil {
		return nil
	}
	m := &journal.Members{}
	for _, name := range lost.Sinks {
		m.Former = append(m.Former, event.FormerSink{Name: name})
	}
	for _, f := range lost.Former {
		m.Former = append(m.Former, event.FormerSink{Name: f.Name})
	}
	return m
}

// addMembers adds the members of a checkpoint.
func (p *checkpointer) addMembers(b *entryBatch, members *journal.Members, generation uint64) {
	record := membersRecord{generation: generation, sinks: members.Sinks}
	for _, f := range members.Former {
		record.former = append(record.former, f.Name)
	}
	b.setIfChanged([]byte{keyMembers}, record.encode())
	if sameMembers(p.members, members) {
		return
	}
	current := map[string]bool{}
	for _, f := range members.Former {
		for _, position := range f.Positions {
			key := formerKey(f.Name, position.Resource)
			current[string(key)] = true
			b.setIfChanged(key, encodeFormer(position))
		}
	}
	b.removeMatching([]byte{keyFormer}, func(rest string) bool { return !current[string(keyFormer)+rest] })
}

// sameMembers reports whether two sets of members are stored in the same form.
func sameMembers(a, b *journal.Members) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.Sinks, b.Sinks) && slices.EqualFunc(a.Former, b.Former, func(a, b event.FormerSink) bool {
		return a.Name == b.Name && slices.Equal(a.Positions, b.Positions)
	})
}
