package history

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"time"
)

// verbs are those of the requests that make the changes of a log. Another version that a list showed was written somehow.
var verbs = map[string]string{"added": "create", "updated": "update", found: "update", "deleted": "delete", missing: "delete"}

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
	uri := "/apis/" + e.Group + "/" + e.Version
	if e.Group == "" {
		uri = "/api/" + e.Version
	}
	if e.Namespace != "" {
		uri += "/namespaces/" + e.Namespace
	}
	ref := map[string]string{"apiGroup": e.Group, "apiVersion": e.Version, "resource": e.Resource, "namespace": e.Namespace, "name": e.Name,
		"uid": e.UID, "resourceVersion": e.ResourceVersion}
	user := map[string]string{"username": e.User} // authenticated, or absent
	for _, m := range []map[string]string{ref, user} {
		maps.DeleteFunc(m, func(_, value string) bool { return value == "" })
	}
	a := map[string]any{
		"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse", "auditID": fmt.Sprint("kubecdc-", e.sequence),
		"stage": "ResponseComplete", "verb": verb, "requestURI": uri + "/" + e.Resource + "/" + e.Name, "user": user, "objectRef": ref,
		"userAgent":      e.Manager, // a client names itself in both
		"responseStatus": map[string]any{"metadata": map[string]string{}, "code": 200}, "requestReceivedTimestamp": at, "stageTimestamp": at,
	}
	if e.object != "" {
		a["responseObject"] = json.RawMessage(e.object)
	}
	return p.printValue(a)
}
