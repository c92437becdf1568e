package attribution

import (
	"encoding/json"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

const (
	maxMarks = 4096  // objects that wait for their finalizers, or for their time to end
	maxKnown = 32768 // pods, and objects that are being deleted, of which the state is known: about 300 bytes each
)

// Mark is who asked for the deletion of an object that still exists.
type Mark struct {
	Number  uint64   `json:"-"` // its own, among requests and marks
	UID     string   `json:"asked"`
	By      *Request `json:"by"`
	Deletes bool     `json:"deletes,omitempty"` // the request deletes the object, too: nothing is waited for
}

// remember keeps who asked for a delete until the object is gone.
func (j *Join) remember(o *object, p *pending, by *Request) {
	m := &Mark{Number: j.Number(), UID: p.UID, By: by, Deletes: p.over && by.Subresource == "eviction"}
	j.found.Marks = append(j.found.Marks, m)
	for _, d := range o.changes {
		if d.Type == event.Deleted {
			d.mark = m
			return
		}
	}
	j.Remember(m)
}

// Remember takes a mark, of an earlier process for instance.
func (j *Join) Remember(m *Mark) {
	j.Reserve(m.Number)
	if gone, made := j.marks.put(m.UID, m); made {
		j.found.Drop = append(j.found.Drop, gone.Number)
	}
}

// stateAt is how an object was at a version.
type stateAt struct {
	state
	version string
}

// holder is the object that has a name.
type holder struct {
	uid   string
	since time.Time // when it was seen to have taken the name over from another object; zero where it was the first
}

// learn takes note of a change, whether anybody can be named for it or not. It returns the state that the change found;
// known is false where that is not known.
func (j *Join) learn(c *Change) (before state, known bool) {
	last, there := j.states.take(c.UID)
	pod := isPod(c.Resource)
	if c.body && (pod || c.deleting) && c.Type != event.Deleted {
		j.states.put(c.UID, stateAt{c.state, c.Version})
	}
	if pod && c.Type != event.Deleted {
		j.learnName(c)
	}
	return last.state, there && c.Previous != "" && last.version == c.Previous
}

// learnName takes note of which pod has a name.
func (j *Join) learnName(c *Change) {
	name := c.name()
	switch h, there := j.names.get(name); {
	case !there:
		j.names.put(name, holder{uid: c.UID})
	case h.uid != c.UID:
		j.names.put(name, holder{uid: c.UID, since: c.Observed})
	}
}

// decodeEvidence reads what was kept: a *[Mark], a *[Loss] or a *[Request].
func decodeEvidence(e event.Evidence) (any, error) {
	m := &Mark{Number: e.Number}
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
