package event

import "strings"

// Clone returns a copy that shares no memory with c. The bodies and strings of a change that was read from the journal are
// parts of larger buffers, which any reference would keep alive.
func (c *Change) Clone() *Change {
	d := *c
	bodies := make([]byte, 0, len(c.Before)+len(c.After)+len(c.Changed))
	for _, b := range [...]*[]byte{&d.Before, &d.After, &d.Changed} {
		bodies = copyBody(b, bodies)
	}
	var t stringCopies
	t.Grow(typicalStringBytes)
	t.copyStrings((*string)(&d.Type), (*string)(&d.Delta), (*string)(&d.Class), (*string)(&d.ChangedAt.Source), &d.Cluster,
		&d.Resource.Group, &d.Resource.Version, &d.Resource.Resource, &d.Resource.Kind,
		&d.Namespace, &d.Name, &d.UID, &d.ResourceVersion, &d.Previous, &d.ListVersion, &d.Withheld, &d.Pass, &d.OnlySink)
	t.copyLists(&d.Omitted)
	if d.Actor != nil {
		own := *d.Actor
		d.Actor = &own
		t.copyStrings(&own.Manager, &own.Operation, &own.Subresource, &own.Time)
	}
	if d.Stamp != nil {
		own := *d.Stamp
		d.Stamp = &own
		t.copyStrings(&own.User, &own.Replaced)
	}
	if d.Gap != nil {
		own := *d.Gap
		d.Gap = &own
		t.copyStrings(&own.From, &own.To, &own.Reason, &own.Sink)
	}
	if d.Snapshot != nil {
		own := *d.Snapshot
		d.Snapshot = &own
		t.copyStrings(&own.ID, &own.Position, &own.Digest)
	}
	if d.Watermark != nil {
		own := *d.Watermark
		d.Watermark = &own
		t.copyStrings(&own.Epoch, &own.Algorithm, &own.Digest)
		t.copyLists(&own.Sinks)
	}
	if d.Replay != nil {
		own := *d.Replay
		d.Replay = &own
		t.copyStrings(&own.ID, &own.Of, (*string)(&own.Type), &own.State, &own.Reason)
	}
	if d.DeadLetter != nil {
		own := *d.DeadLetter
		d.DeadLetter = &own
		t.copyStrings(&own.Sink, &own.Reason)
	}
	if d.Attribution != nil {
		own := *d.Attribution
		d.Attribution = &own
		t.copyStrings(&own.Of, &own.Certainty)
		t.copyIdentity(&own.By)
		if own.RequestedBy != nil {
			by := *own.RequestedBy
			own.RequestedBy = &by
			t.copyIdentity(&by)
		}
	}
	return &d
}

// typicalStringBytes suffices for the strings of most changes.
const typicalStringBytes = 256

// copyBody appends *b to bodies, which has capacity for it, and makes *b refer to the copy.
func copyBody(b *[]byte, bodies []byte) []byte {
	if *b == nil {
		return bodies
	}
	start := len(bodies)
	bodies = append(bodies, *b...)
	*b = bodies[start:len(bodies):len(bodies)]
	return bodies
}

// stringCopies holds copies of strings in as few allocations as possible.
type stringCopies struct{ strings.Builder }

// copyStrings replaces each string with its copy.
func (t *stringCopies) copyStrings(all ...*string) {
	for _, s := range all {
		if t.Cap()-t.Len() < len(*s) {
			t.Reset() // earlier copies keep the old buffer
			t.Grow(max(typicalStringBytes, len(*s)))
		}
		start := t.Len()
		t.WriteString(*s)
		*s = t.String()[start:]
	}
}

// copyLists replaces each list and its strings with copies.
func (t *stringCopies) copyLists(lists ...*[]string) {
	for _, list := range lists {
		*list = append([]string(nil), *list...)
		for i := range *list {
			t.copyStrings(&(*list)[i])
		}
	}
}

func (t *stringCopies) copyIdentity(i *Identity) {
	t.copyStrings(&i.User, &i.UID, &i.Impersonator, &i.ImpersonationConstraint, &i.Verb, &i.Subresource, &i.UserAgent, &i.AuditID)
	t.copyLists(&i.Groups, &i.SourceIPs)
}
