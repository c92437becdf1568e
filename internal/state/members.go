package state

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// membersRecord names the sinks that have settled the checkpoint of this generation, and those that were members before, the
// value of keyMembers. It is void if its generation is not that of the newest checkpoint: an older exporter has written
// that.
type membersRecord struct {
	generation uint64
	sinks      []string
	former     []string
}

func codeMembers(f *form.Coder, m *membersRecord) {
	f.CodeUvarint(&m.generation)
	f.CodeTextList(&m.sinks)
	f.CodeTextList(&m.former)
}

// formerKey is the key of the position up to which a former sink received everything of a resource.
func formerKey(sink string, r event.Resource) []byte {
	return append(form.AppendText([]byte{keyFormer}, sink), r.String()...)
}

func codeFormer(f *form.Coder, p *event.ResourcePosition) {
	f.CodeTexts(&p.Resource.Version, &p.Resource.Kind, &p.Position)
}

func codeFormerKey(f *form.Coder, k *struct{ sink, resource string }) {
	f.CodeText(&k.sink)
	f.CodeRemainingText(&k.resource)
}

// decodeMembers returns the members of the newest checkpoint; nil if they are not known.
func (t *table) decodeMembers(checkpoint checkpointRecord) (*journal.Members, error) {
	value, ok := t.others[string(keyMembers)]
	if !ok {
		return nil, nil
	}
	var record membersRecord
	if err := form.DecodeValue("member sinks", value, codeMembers, &record); err != nil || record.generation != checkpoint.generation {
		return nil, err
	}
	positions := map[string][]event.ResourcePosition{}
	for key, value := range t.others {
		if key[0] != keyFormer {
			continue
		}
		var k struct{ sink, resource string }
		var p event.ResourcePosition
		err := cmp.Or(form.DecodeValue("key of a former sink", key[1:], codeFormerKey, &k), form.DecodeValue("former sink", value, codeFormer, &p))
		if err != nil {
			return nil, err
		}
		of := event.ParseResourceName(k.resource)
		p.Resource.Group, p.Resource.Resource = of.Group, of.Resource
		positions[k.sink] = append(positions[k.sink], p)
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
	b.setIfChanged([]byte{keyMembers}, form.EncodeValue(nil, codeMembers, &record))
	if sameMembers(p.members, members) {
		return
	}
	current := map[string]bool{}
	for _, f := range members.Former {
		for _, position := range f.Positions {
			key := formerKey(f.Name, position.Resource)
			current[string(key)] = true
			b.setIfChanged(key, form.EncodeValue(nil, codeFormer, &position))
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
