package attribution

import (
	"encoding/json"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Request is an audited request that may have made changes.
type Request struct {
	audit.Event
	// Origin identifies the API server; "" if not known. Only times of the same origin are compared with each other.
	Origin string `json:"origin,omitempty"`
	// Number is its evidence number, unique among the requests, marks and losses of a [Matcher].
	Number uint64 `json:"-"`
	// Arrived is when this process got the event. The wait of an event that an earlier process stored restarts.
	Arrived time.Time `json:"-"`
	// Lag is by how much the event arrived too late to be waited for; 0 if it did not.
	Lag time.Duration `json:"lag,omitempty"`
	// Bound is the UID of the object that a request which has only a name was about, once it matched a change of that object.
	// From then on it claims nothing of another one, also after a restart.
	Bound string `json:"bound,omitempty"`

	encoded []byte // as stored in the journal; nil: not encoded yet
}

// encodeEvidence sets encoded.
func (r *Request) encodeEvidence() (err error) {
	if r.encoded == nil {
		r.encoded, err = json.Marshal(r)
	}
	return err
}

// size estimates the memory of a decoded request, in bytes.
func (r *Request) size() int {
	n := 1050 + 24*len(r.Groups) + 16*len(r.SourceIPs) + 160*len(r.Items)
	for _, s := range r.Groups {
		n += len(s)
	}
	return n + len(r.UserAgent) + len(r.User) + len(r.Name) + len(r.Namespace)
}

// identity returns the identity that made a request, in the form of an attributed record.
func (r *Request) identity() event.Identity {
	i := event.Identity{
		User: r.User, UID: r.UserUID, Groups: r.Groups, Verb: r.Verb, Subresource: r.Subresource, Received: r.Received.Time(),
		UserAgent: r.UserAgent, SourceIPs: r.SourceIPs, AuditID: r.ID,
	}
	if as := r.Impersonated; as != nil {
		i.User, i.UID, i.Groups, i.Impersonator = as.Name, as.UID, as.Groups, r.User
		i.ImpersonationConstraint = r.Constraint
	}
	return i
}

// decodeEvidence decodes stored evidence: a *[DeleteMark], a *[Loss] or a *[Request].
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

// decodeRequest decodes a request that encodeEvidence has encoded.
func decodeRequest(number uint64, encoded []byte) (*Request, error) {
	r := &Request{Number: number}
	err := json.Unmarshal(encoded, r)
	r.Stage = audit.Complete // the only stage that is stored
	return r, err
}

// encodeKept encodes what has to be stored after a round of resolving.
func encodeKept(f *Findings) (all []event.Evidence, err error) {
	for _, r := range f.Bound {
		if err := r.encodeEvidence(); err != nil {
			return nil, err
		}
		all = append(all, event.Evidence{Number: r.Number, Value: r.encoded})
		r.encoded = nil // it is decoded, and is not counted twice
	}
	for _, m := range f.Marks {
		value, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		all = append(all, event.Evidence{Number: m.Number, Value: value})
	}
	return all, nil
}
