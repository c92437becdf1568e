package state

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Version is the version of the format that FORMAT.md specifies. It is raised by a change that an older exporter would
// misread.
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

// meta is the record of the owner, the value of keyMeta.
type meta struct {
	version  uint64
	lease    string
	cluster  string // UID; "" if not known
	owner    Owner
	offset   uint64 // of the owner's journal: everything up to here was in the state at the take-over
	complete bool   // the state has all known objects and positions
}

// codeMeta decodes only the version of a record in a newer format.
func codeMeta(f *form.Coder, m *meta) {
	version := uint64(Version)
	if f.CodeUvarint(&version); f.Decoding {
		m.version = version
	}
	if version > Version {
		var newer string
		f.CodeRemainingText(&newer)
		return
	}
	f.CodeTexts(&m.lease, &m.cluster, &m.owner.Identity, &m.owner.Journal)
	f.CodeUvarint(&m.owner.Generation)
	f.CodeMillis(&m.owner.Since)
	f.CodeUvarint(&m.offset)
	f.CodeBool(&m.complete)
}

// checkpointRecord is how far the journal of the owner of this generation is covered, the value of keyCheckpoint. A record
// of another generation than the owner's is void.
type checkpointRecord struct {
	generation uint64
	offset     uint64
	takenAt    time.Time
}

func codeCheckpoint(f *form.Coder, m *checkpointRecord) {
	f.CodeUvarint(&m.generation)
	f.CodeUvarint(&m.offset)
	f.CodeMillis(&m.takenAt)
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

func decodeKey(key string) (number uint64, rest string, err error) {
	return number, rest, form.DecodeValue("key", []byte(key[1:]), func(f *form.Coder, _ *struct{}) {
		f.CodeUvarint(&number)
		f.CodeRemainingText(&rest)
	}, &struct{}{})
}

func codeLane(f *form.Coder, l *sinkLane) {
	f.CodeTexts(&l.sink, (*string)(&l.lane))
}

func codeProgress(f *form.Coder, t *sinks.Tail) {
	form.CodeNumber(f, &t.From)
	form.CodeNumber(f, &t.Reached)
}

// parseVersion parses a resourceVersion. ok is false unless it is a canonical decimal number.
func parseVersion(text string) (version uint64, ok bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && (n == 0 && text == "0" || n > 0 && text[0] != '0' && text[0] != '+')
}

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

func codeFormer(f *form.Coder, p *event.ResourcePosition) {
	f.CodeTexts(&p.Resource.Version, &p.Resource.Kind, &p.Position)
}

// decodeMembers returns the members of the newest checkpoint; nil if they are not known.
func (t *table) decodeMembers(checkpoint checkpointRecord) (*journal.Members, error) {
	var record membersRecord
	if found, err := decodeSingle(t, keyMembers, "member sinks", codeMembers, &record); !found || err != nil || record.generation != checkpoint.generation {
		return nil, err
	}
	positions := map[string][]event.ResourcePosition{}
	for key, value := range t.others {
		if key[0] != keyFormer {
			continue
		}
		var sink, resource string
		var p event.ResourcePosition
		err := cmp.Or(form.DecodeValue("key of a former sink", key[1:], func(f *form.Coder, sink *string) {
			f.CodeText(sink)
			f.CodeRemainingText(&resource)
		}, &sink), form.DecodeValue("former sink", value, codeFormer, &p))
		if err != nil {
			return nil, err
		}
		of := event.ParseResourceName(resource)
		p.Resource.Group, p.Resource.Resource = of.Group, of.Resource
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

// withoutPositions returns members of which some have lost an unknown part of what they had: they are former ones without
// positions.
func withoutPositions(before *journal.Members, lost func(sink string) bool) *journal.Members {
	if before == nil {
		return nil
	}
	m := &journal.Members{Former: slices.Clone(before.Former)}
	for _, name := range before.Sinks {
		if lost(name) {
			m.Former = append(m.Former, event.FormerSink{Name: name})
		} else {
			m.Sinks = append(m.Sinks, name)
		}
	}
	for i, f := range m.Former {
		if lost(f.Name) {
			m.Former[i].Positions = nil
		}
	}
	return m
}

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
			key := append(form.AppendText([]byte{keyFormer}, f.Name), position.Resource.String()...) // decodeMembers splits it
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
