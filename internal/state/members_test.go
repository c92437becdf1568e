package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// gapsIn returns the IDs of the gaps in a topic.
func (w *world) gapsIn(name string) (ids []string) {
	for _, messages := range w.topics[name].messagesByLane() {
		for _, e := range messages {
			if e.Type == event.Gap {
				ids = append(ids, e.ID)
			}
		}
	}
	return ids
}

// TestOnlyASinkThatWasAMemberGetsAGap lets a process with both sinks take over from one with the first sink, in a state that
// knows the second one, or not.
func TestOnlyASinkThatWasAMemberGetsAGap(t *testing.T) {
	for name, c := range map[string]struct {
		before bool                              // the second sink was a member before
		forget func(*process) []sinks.StateEntry // what an older exporter makes of the state
		gaps   bool
	}{
		"it was a member": {before: true, gaps: true},
		"it is new":       {},
		"an older exporter wrote the state first": {
			before: true,
			forget: func(p *process) (removed []sinks.StateEntry) {
				return append(p.writer.mirror.table.otherEntries(func(_ uint64, key []byte) bool {
					return key[0] == keyFormer
				}), sinks.StateEntry{Key: []byte{keyMembers}})
			},
		},
		"an older exporter wrote the last checkpoint": {
			before: true,
			forget: func(*process) []sinks.StateEntry {
				return []sinks.StateEntry{{Key: []byte{keyMembers}, Value: form.EncodeValue(nil, codeMembers, &membersRecord{1, []string{"first", "second"}, nil})}}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, false)
			w.onlyFirst = !c.before
			w.changeCluster(30, startActive(t, w, w.startProcess(nil)))
			w.onlyFirst = true
			p := startActive(t, w, w.startProcess(nil))
			w.changeCluster(30, p)
			if c.forget != nil {
				entries := c.forget(p)
				for i := range entries {
					if entries[i].Key[0] == keyFormer {
						entries[i].Value = nil
					}
				}
				if err := p.writer.entries.commitEntries(t.Context(), entries); err != nil {
					t.Fatal(err)
				}
			}
			w.onlyFirst = false
			last := startActive(t, w, w.startProcess(nil))
			w.changeCluster(30, last)
			if gaps := w.gapsIn("second"); (len(gaps) > 0) != c.gaps {
				t.Errorf("gaps %q", gaps)
			}
			if gaps := w.gapsIn("first"); len(gaps) > 0 {
				t.Errorf("the first sink gets the gaps %q", gaps)
			}
			w.verifyTopic("first", true)
			stored, err := last.writer.mirror.table.decodeContent()
			if err != nil || stored.members == nil || strings.Join(stored.members.Sinks, " ") != "first second" || stored.members.Former != nil {
				t.Errorf("the state has the members %+v (%v)", stored.members, err)
			}
		})
	}
}

// TestALossThatIsToBeSentAgainIsAGapWithAnotherJournal lets a process take over from one that has begun to send again what a
// sink lost: only the journal of that one has it.
func TestALossThatIsToBeSentAgainIsAGapWithAnotherJournal(t *testing.T) {
	w := newWorld(t, 3, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(30, p)
	w.changeCluster(30, nil)
	for _, name := range slices.Sorted(maps.Keys(p.scopes)) {
		p.watchScope(name)
	}
	if err := cmp.Or(p.writer.checkpoints.storeLoss(t.Context(), "second"), p.writer.checkpoints.advanceState(t.Context())); err != nil {
		t.Fatal(err)
	}
	last := startActive(t, w, w.startProcess(nil))
	w.changeCluster(30, last)
	if first, second := w.gapsIn("first"), w.gapsIn("second"); len(first) > 0 || len(second) == 0 {
		t.Errorf("the gaps %q are in the first sink, %q in the second one", first, second)
	}
	stored, err := last.writer.mirror.table.decodeContent()
	if err != nil || strings.Join(stored.members.Sinks, " ") != "first second" || stored.members.Former != nil {
		t.Errorf("the state has the members %+v (%v)", stored.members, err)
	}
}
