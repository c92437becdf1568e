package e2e

import "encoding/json"

// acceptedEvent is an audit event that the exporter answered with 200.
type acceptedEvent struct {
	Stage, Verb      string
	User             struct{ Username string }
	ImpersonatedUser struct{ Username string }
	ObjectRef        struct{ Resource, Subresource string }
	ResponseStatus   struct {
		Code    int
		Details struct{ UID string }
	}
	ResponseObject answerHead
}

// changeKey returns the key of the change that the event proves alone: a create, or a delete that removed the object at
// once; "" for other events.
func (e *acceptedEvent) changeKey() string {
	switch m := e.ResponseObject.Metadata; {
	case e.Stage != "ResponseComplete" || e.ObjectRef.Subresource != "":
		return ""
	case e.Verb == "create" && e.ResponseStatus.Code == 201 && m.UID != "":
		return "added " + m.UID
	case e.Verb == "delete" && e.ResponseStatus.Code == 200 && e.ResponseStatus.Details.UID != "":
		return "deleted " + e.ResponseStatus.Details.UID
	}
	return ""
}

func (e *acceptedEvent) actorName() string {
	if as := e.ImpersonatedUser.Username; as != "" {
		return as + " by " + e.User.Username
	}
	return e.User.Username
}

// verifyAcceptedEvents compares the authors in the stream with the accepted events.
func (a *audited) verifyAcceptedEvents(l *auditRelay) {
	a.t.Helper()
	l.mu.Lock()
	taken := l.taken
	l.mu.Unlock()
	authors := map[string]string{}
	for _, text := range taken {
		var e acceptedEvent
		if json.Unmarshal(text, &e) == nil && e.changeKey() != "" {
			authors[e.changeKey()] = e.actorName()
		}
	}
	records := a.readRecords()
	by, used, again := a.authorsByID(records), 0, map[string]bool{}
	for _, c := range records {
		id, _ := c["id"].(string)
		kind, _ := c["type"].(string)
		uid, _ := c["uid"].(string)
		author := authors[kind+" "+uid]
		if author == "" || c["coalesced"] == true || again[id] {
			continue
		}
		again[id] = true
		if used++; by[id] != author {
			a.t.Errorf("the event of %s by %s was accepted, and the author is %q", id, author, by[id])
		}
	}
	if a.t.Logf("%d events taken, %d of them name a change alone", len(taken), used); used == 0 {
		a.t.Error("no event was accepted")
	}
}
