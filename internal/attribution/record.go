package attribution

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// attributedRecord makes the record that says who made a change.
func attributedRecord(c *Resolution, now time.Time) *event.Change {
	of := &event.Change{
		Type: event.Attributed, Cluster: c.Cluster, Resource: c.Resource, Namespace: c.Namespace, Name: c.Name,
		UID: c.UID, ResourceVersion: c.Version, ObservedAt: now.UTC(),
		Attribution: &event.Attribution{Of: c.ID, By: identityOfRequest(c.By), Certainty: event.Exact},
	}
	if c.Likely {
		of.Attribution.Certainty = event.Likely
	}
	if c.RequestedBy != nil {
		asked := identityOfRequest(c.RequestedBy)
		of.Attribution.RequestedBy = &asked
	}
	return of
}

// identityOfRequest is who made a request, as the record tells it.
func identityOfRequest(r *Request) event.Identity {
	i := event.Identity{
		User: r.User, UID: r.UserUID, Groups: r.Groups, Verb: r.Verb, Subresource: r.Subresource, Received: r.Received.Time(),
		UserAgent: r.UserAgent, SourceIPs: r.SourceIPs, AuditID: r.ID,
	}
	if as := r.Impersonated; as != nil {
		i.User, i.UID, i.Groups, i.Impersonator = as.Name, as.UID, as.Groups, r.User
	}
	return i
}
