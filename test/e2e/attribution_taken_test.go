package e2e

import "encoding/json"

// acceptedEvent is what an audit event says that was answered with 200.
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

// changeKey returns the key under which the change of an event that names alone is found: of a create, and of a delete that
// removed the object at once; "" for others.
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

// verifyAcceptedEvents compares the names in the stream with the events that the exporter had taken.
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
			a.t.Errorf("the event that %s was made by %s was taken, and the change is named %q", id, author, by[id])
		}
	}
	if a.t.Logf("%d events taken, %d of them name a change alone", len(taken), used); used == 0 {
		a.t.Error("none was taken")
	}
}
