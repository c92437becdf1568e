package history

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// verbs are those of the requests that make the changes of a log. Another version that a list showed was written somehow.
var verbs = map[string]string{"added": "create", "updated": "update", found: "update", "deleted": "delete", missing: "delete"}

// auditEvent is what programs read of an Event of audit.k8s.io/v1.
type auditEvent struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Level      string `json:"level"`
	AuditID    string `json:"auditID"`
	Stage      string `json:"stage"`
	RequestURI string `json:"requestURI"`
	Verb       string `json:"verb"`
	User       struct {
		Username string `json:"username,omitempty"` // authenticated, or absent
	} `json:"user"`
	UserAgent string `json:"userAgent,omitempty"` // the field manager: a client names itself in both
	ObjectRef struct {
		Resource        string `json:"resource"`
		Namespace       string `json:"namespace,omitempty"`
		Name            string `json:"name"`
		UID             string `json:"uid,omitempty"`
		APIGroup        string `json:"apiGroup,omitempty"`
		APIVersion      string `json:"apiVersion"`
		ResourceVersion string `json:"resourceVersion,omitempty"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Metadata struct{} `json:"metadata"`
		Code     int      `json:"code"`
	} `json:"responseStatus"`
	ResponseObject json.RawMessage `json:"responseObject,omitempty"` // as written; absent of deletes
	Received       string          `json:"requestReceivedTimestamp"`
	Done           string          `json:"stageTimestamp"`
}

// printAudit writes a change as the API server's audit log has it at the level RequestResponse: a complete request for each.
// Readers of such logs order them by time alone, so that each has a later one than the one before. What is no request, such
// as a gap, goes to p.Beside as a line.
func (p *Printer) printAudit(e *Entry) error {
	verb := verbs[e.Type]
	if verb == "" {
		_, err := io.WriteString(p.Beside, "! "+e.line())
		return err
	}
	if p.last = p.last.Add(time.Microsecond); p.last.Before(e.Time) {
		p.last = e.Time
	}
	at := p.last.UTC().Format("2006-01-02T15:04:05.000000Z")
	a := auditEvent{Kind: "Event", APIVersion: "audit.k8s.io/v1", Level: "RequestResponse", AuditID: fmt.Sprint("kubecdc-", e.sequence),
		Stage: "ResponseComplete", Verb: verb, UserAgent: e.Manager, Received: at, Done: at, ResponseObject: json.RawMessage(e.object)}
	a.User.Username, a.ResponseStatus.Code = e.User, 200
	o := &a.ObjectRef
	o.APIGroup, o.APIVersion, o.Resource, o.Namespace, o.Name, o.UID, o.ResourceVersion = e.Group, e.Version, e.Resource, e.Namespace, e.Name, e.UID, e.ResourceVersion
	a.RequestURI = "/apis/" + e.Group + "/" + e.Version
	if e.Group == "" {
		a.RequestURI = "/api/" + e.Version
	}
	if e.Namespace != "" {
		a.RequestURI += "/namespaces/" + e.Namespace
	}
	if a.RequestURI += "/" + e.Resource; verb == "create" {
		a.ResponseStatus.Code = 201
	} else {
		a.RequestURI += "/" + e.Name
	}
	return p.printValue(a)
}
