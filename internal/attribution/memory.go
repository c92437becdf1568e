package attribution

import (
	"encoding/json"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

const (
	maxMarks       = 4096  // objects that wait for their finalizers, or for their time to end
	maxKnownStates = 32768 // pods, and objects that are being deleted, of which the state is known: about 300 bytes each
)

// DeleteMark is who asked for the deletion of an object that still exists.
type DeleteMark struct {
	Number  uint64   `json:"-"` // its own, among requests and marks
	UID     string   `json:"asked"`
	By      *Request `json:"by"`
	Deletes bool     `json:"deletes,omitempty"` // the request deletes the object, too: nothing is waited for
}

// recordDeleteMark keeps who asked for a delete until the object is gone.
func (j *Matcher) recordDeleteMark(o *objectQueue, p *pendingChange, by *Request) {
	m := &DeleteMark{Number: j.NextNumber(), UID: p.UID, By: by, Deletes: p.deletable && by.Subresource == "eviction"}
	j.findings.Marks = append(j.findings.Marks, m)
	for _, d := range o.changes {
		if d.Type == event.Deleted {
			d.mark = m
			return
		}
	}
	j.AddDeleteMark(m)
}

// AddDeleteMark takes a mark, of an earlier process for instance.
func (j *Matcher) AddDeleteMark(m *DeleteMark) {
	j.ReserveNumber(m.Number)
	if gone, made := j.marks.putNewest(m.UID, m); made {
		j.findings.Drop = append(j.findings.Drop, gone.Number)
	}
}

// versionedState is how an object was at a version.
type versionedState struct {
	objectState
	version string
}

// nameHolder is the object that has a name.
type nameHolder struct {
	uid   string
	since time.Time // when it was seen to have taken the name over from another object; zero where it was the first
}

// recordState takes note of a change, whether anybody can be named for it or not. It returns the state that the change found;
// known is false where that is not known.
func (j *Matcher) recordState(c *Change) (before objectState, known bool) {
	last, there := j.states.remove(c.UID)
	pod := isPod(c.Resource)
	if c.hasState && (pod || c.deleting) && c.Type != event.Deleted {
		j.states.putNewest(c.UID, versionedState{c.objectState, c.Version})
	}
	if pod && c.Type != event.Deleted {
		j.recordNameHolder(c)
	}
	return last.objectState, there && c.Previous != "" && last.version == c.Previous
}

// recordNameHolder takes note of which pod has a name.
func (j *Matcher) recordNameHolder(c *Change) {
	name := c.objectName()
	switch h, there := j.names.get(name); {
	case !there:
		j.names.putNewest(name, nameHolder{uid: c.UID})
	case h.uid != c.UID:
		j.names.putNewest(name, nameHolder{uid: c.UID, since: c.Observed})
	}
}

// decodeEvidence reads what was kept: a *[DeleteMark], a *[Loss] or a *[AddRequest].
func decodeEvidence(e event.Evidence) (any, error) {
	m := &DeleteMark{Number: e.Number}
	if err := json.Unmarshal(e.Value, m); err != nil || m.UID != "" && m.By != nil {
		return m, err
	}
	l := &Loss{Numbers: []uint64{e.Number}}
	if err := json.Unmarshal(e.Value, l); err != nil || l.Reason != "" {
		return l, err
	}
	return decodeRequest(e.Number, e.Value)
}

func decodeRequest(number uint64, kept []byte) (*Request, error) {
	r := &Request{Number: number}
	err := json.Unmarshal(kept, r)
	r.Stage = audit.Complete
	return r, err
}
