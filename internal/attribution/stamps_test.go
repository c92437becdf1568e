package attribution

import (
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/attribution/stamp"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// stampedChange returns an update of version 1 to 2 with a stamp of a user.
func stampedChange(user string) Change {
	return Change{Offset: 1, Type: event.Updated, UID: "u", Version: "2", Previous: "1", Observed: testTime(0),
		Resource: event.Resource{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"}, Stamp: &event.Stamp{User: user, Replaced: "1"}}
}

func answered(user string) *Request {
	return &Request{Event: audit.Event{User: user, Verb: "patch", Replaces: "1", Resource: "configmaps", Stage: audit.Complete, Code: 200, Outcome: audit.Stored,
		Received: audit.Time(testTime(0).UnixNano()), Done: audit.Time(testTime(0).UnixNano()), Answer: audit.Object{UID: "u", ResourceVersion: "2"}}, Arrived: testTime(0)}
}

// fixedProof is the same verdict for each version.
type fixedProof stamp.Verdict

func (p fixedProof) Judge(event.Resource, string) stamp.Verdict { return stamp.Verdict(p) }

// TestAStampAndTheAuditLogHaveToAgree: each of them names alone what the other does not know. If they contradict each other,
// no user is named.
func TestAStampAndTheAuditLogHaveToAgree(t *testing.T) {
	inForce, absent, behind := fixedProof(stamp.InForce), fixedProof(stamp.NotInForce), fixedProof(stamp.NotKnown)
	const settle, window = 2000, 20000 // milliseconds
	for name, c := range map[string]struct {
		proof    fixedProof
		noEvents bool
		stamp    string // user; "": not stamped
		requests []string
		at       int
		want     string // user, or reason in brackets; "": it waits
		stamped  bool
	}{
		"a stamp alone":                             {proof: inForce, noEvents: true, stamp: "alice", want: "alice", stamped: true},
		"no stamp and no events":                    {proof: inForce, noEvents: true, want: "[stamp]"},
		"no policy and no events":                   {proof: absent, noEvents: true, stamp: "alice", want: "[policy]"},
		"not checked yet, and no events":            {proof: behind, noEvents: true, stamp: "alice", at: settle},
		"never checked, and no events":              {proof: behind, noEvents: true, stamp: "alice", at: window, want: "[policy]"},
		"both at once":                              {proof: inForce, stamp: "alice", requests: []string{"alice"}, want: "alice", stamped: true},
		"a stamp, and no event yet":                 {proof: inForce, stamp: "alice"},
		"a stamp, and the event is lost":            {proof: inForce, stamp: "alice", at: settle, want: "alice", stamped: true},
		"another user, not yet":                     {proof: inForce, stamp: "alice", requests: []string{"bob"}},
		"another user":                              {proof: inForce, stamp: "alice", requests: []string{"bob"}, at: settle, want: "[disagree]"},
		"two requests, one is of the user":          {proof: inForce, stamp: "alice", requests: []string{"bob", "alice"}, want: "alice", stamped: true},
		"two requests of others":                    {proof: inForce, stamp: "alice", requests: []string{"bob", "carol"}, at: settle, want: "[disagree]"},
		"not stamped, with an event":                {proof: inForce, requests: []string{"bob"}, at: settle, want: "bob"},
		"a stamp without the policy, with an event": {proof: absent, stamp: "alice", requests: []string{"bob"}, at: settle, want: "bob"},
		"a stamp without the policy, and no event":  {proof: absent, stamp: "alice", at: window, want: "[none]"},
		"not checked yet, with an event":            {proof: behind, stamp: "alice", requests: []string{"bob"}},
		"never checked, with an event":              {proof: behind, stamp: "alice", requests: []string{"bob"}, at: settle, want: "bob"},
	} {
		m := NewMatcher(Limits{Settle: time.Second, Window: 10 * time.Second, Bytes: 1 << 20, NoEvents: c.noEvents})
		m.useStamps(c.proof)
		change := stampedChange(c.stamp)
		if c.stamp == "" {
			change.Stamp = nil
		}
		m.AddChange(change)
		for _, user := range c.requests {
			r := answered(user)
			r.ID = user
			m.AddRequest(r)
		}
		m.Resolve(testTime(c.at))
		got, stamped := "", false
		for _, r := range m.TakeFindings().Resolved {
			stamped = r.ByStamp
			if got = "[" + string(r.Reason) + "]"; r.By != nil {
				got = r.By.User
			}
		}
		if got != c.want || stamped != c.stamped {
			t.Errorf("%s: %q, by stamp %v; want %q, %v", name, got, stamped, c.want, c.stamped)
		}
		if wantCheck := c.proof == behind && c.want == ""; wantCheck && !m.unproven {
			t.Errorf("%s: no check is requested", name)
		}
	}
}

// TestAStaleStampIsNotOfTheChange: only one that names the version before of the object as replaced is.
func TestAStaleStampIsNotOfTheChange(t *testing.T) {
	for name, c := range map[string]struct {
		change event.Change
		want   bool
	}{
		"update":                              {event.Change{Type: event.Updated, Previous: "1", Stamp: stampOf("1", "a")}, true},
		"update after an unstamped one":       {event.Change{Type: event.Updated, Previous: "2", Stamp: stampOf("1", "a")}, false},
		"update with a copied stamp":          {event.Change{Type: event.Updated, Previous: "1", Stamp: stampOf("1", "b")}, false},
		"update of an unknown version":        {event.Change{Type: event.Updated, Stamp: stampOf("", "a")}, false},
		"update with the stamp of the create": {event.Change{Type: event.Updated, Previous: "1", Stamp: stampOf("new", "a")}, false},
		"create":                              {event.Change{Type: event.Added, Stamp: stampOf("new", "a")}, true},
		"added with a copied stamp":           {event.Change{Type: event.Added, Stamp: stampOf("new", "b")}, false},
		"added with a later stamp":            {event.Change{Type: event.Added, Stamp: stampOf("1", "a")}, false},
		"coalesced":                           {event.Change{Type: event.Updated, Coalesced: true, Previous: "1", Stamp: stampOf("1", "a")}, false},
		"delete":                              {event.Change{Type: event.Deleted, Previous: "1", Stamp: stampOf("1", "a")}, false},
	} {
		c.change.UID, c.change.ResourceVersion, c.change.Name = "u", "3", "a"
		c.change.Resource = event.Resource{Version: "v1", Resource: "configmaps"}
		got, _ := ChangeOf(event.Record{Change: &c.change})
		if (got.Stamp != nil) != c.want {
			t.Errorf("%s: stamp %v", name, got.Stamp)
		}
	}
}

// stampOf returns the stamp of a write that replaced a version of a ConfigMap.
func stampOf(version, name string) *event.Stamp {
	return &event.Stamp{User: "alice", Replaced: version + ":/configmaps//" + name}
}
