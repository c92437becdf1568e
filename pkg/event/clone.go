package event

import "strings"

// Clone returns a copy that shares no memory with c: bodies and strings of a change that was read from the journal are parts
// of larger buffers, which a reference to any of them would keep alive.
func (c *Change) Clone() *Change {
	d := *c
	bodies := make([]byte, 0, len(c.Before)+len(c.After)+len(c.Patch))
	for _, b := range [...]*[]byte{&d.Before, &d.After, &d.Patch} {
		bodies = moveBody(b, bodies)
	}
	var t texts
	t.Grow(cloneTexts)
	t.move((*string)(&d.Type), (*string)(&d.Delta), (*string)(&d.Class), &d.Cluster,
		&d.Resource.Group, &d.Resource.Version, &d.Resource.Resource, &d.Resource.Kind,
		&d.Namespace, &d.Name, &d.UID, &d.ResourceVersion, &d.Previous, &d.Withheld, &d.Pass)
	t.moveAll(&d.Changed, &d.Omitted)
	if d.Actor != nil {
		own := *d.Actor
		d.Actor = &own
		t.move(&own.Manager, &own.Operation, &own.Subresource, &own.Time)
	}
	if d.Gap != nil {
		own := *d.Gap
		d.Gap = &own
		t.move(&own.From, &own.To, &own.Reason)
	}
	if d.Snapshot != nil {
		own := *d.Snapshot
		d.Snapshot = &own
		t.move(&own.ID, &own.Position, &own.Digest)
	}
	if d.DeadLetter != nil {
		own := *d.DeadLetter
		d.DeadLetter = &own
		t.move(&own.Sink, &own.Reason)
	}
	if d.Attribution != nil {
		own := *d.Attribution
		d.Attribution = &own
		t.move(&own.Of, &own.Certainty)
		t.moveIdentity(&own.By)
		if own.RequestedBy != nil {
			by := *own.RequestedBy
			own.RequestedBy = &by
			t.moveIdentity(&by)
		}
	}
	return &d
}

// cloneTexts is room for the strings of most changes, in bytes.
const cloneTexts = 256

// moveBody makes b refer to a copy that it appends to bodies, which has room for it.
func moveBody(b *[]byte, bodies []byte) []byte {
	if *b == nil {
		return bodies
	}
	start := len(bodies)
	bodies = append(bodies, *b...)
	*b = bodies[start:len(bodies):len(bodies)]
	return bodies
}

// texts holds copies of strings in one allocation, or few.
type texts struct{ strings.Builder }

// move makes strings refer to their copies.
func (t *texts) move(all ...*string) {
	for _, s := range all {
		if t.Cap()-t.Len() < len(*s) {
			t.Reset() // the copies so far stay where they are
			t.Grow(max(cloneTexts, len(*s)))
		}
		start := t.Len()
		t.WriteString(*s)
		*s = t.String()[start:]
	}
}

// moveAll does so for lists of strings.
func (t *texts) moveAll(lists ...*[]string) {
	for _, list := range lists {
		*list = append([]string(nil), *list...)
		for i := range *list {
			t.move(&(*list)[i])
		}
	}
}

func (t *texts) moveIdentity(i *Identity) {
	t.move(&i.User, &i.UID, &i.Impersonator, &i.Verb, &i.Subresource, &i.UserAgent, &i.AuditID)
	t.moveAll(&i.Groups, &i.SourceIPs)
}
