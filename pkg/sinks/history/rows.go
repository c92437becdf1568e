package history

import (
	"unsafe"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// hasRow reports whether a history has a row of the change. A watermark says nothing that the rows do not.
func hasRow(c *event.Change) bool { return c.Type != event.Watermark }

// isVersion reports whether no other change brings the version of its object: its ID has nothing else.
func isVersion(c *event.Change) bool {
	switch c.Type {
	case event.Added, event.Updated, event.Deleted, event.Attributed:
		return c.Pass == ""
	}
	return false
}

// newRow makes the row of a change, and refers to its memory.
func newRow(c *event.Change) history.Row {
	r := history.Row{Object: text(c.After), Facts: history.Facts{
		Cluster: c.Cluster, Group: c.Resource.Group, Version: c.Resource.Version, Resource: c.Resource.Resource, Kind: c.Resource.Kind,
		Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion, Type: string(c.Type),
		ChangedAt: c.ChangedAt.At, NotBefore: c.ChangedAt.NotBefore, TimeSource: string(c.ChangedAt.Source), ObservedAt: c.ObservedAt,
		Changed: differences(c.Changed),
	}}
	if c.Left {
		r.Type = history.Left
	}
	if c.Actor != nil {
		r.Manager = c.Actor.Manager
	}
	if c.Attribution != nil {
		r.User, r.Attribution = c.Attribution.By.User, c.Attribution.Certainty
	}
	if c.Gap != nil {
		r.GapFrom, r.GapTo, r.GapReason = c.Gap.From, c.Gap.To, c.Gap.Reason
	}
	return r
}

// text returns bytes as a string in the same memory.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// differences returns what a change lists as changed, see [event.Change.HasValues].
func differences(changed []byte) (all []history.Difference) {
	if len(changed) == 0 {
		return nil
	}
	for e := rawjson.EnterArray(changed, 0); e.Next(); {
		if changed[e.I] == '"' { // of a rule that listed paths alone when this was journaled
			end := rawjson.SkipTrustedValue(changed, e.I)
			all = append(all, history.Difference{Path: text(rawjson.Unquote(changed[e.I:end]))})
			e.I = end
			continue
		}
		var d history.Difference
		m := rawjson.EnterObject(changed, e.I)
		for m.Next() {
			end := rawjson.SkipTrustedValue(changed, m.I)
			switch value := changed[m.I:end]; string(m.Key) {
			case "path":
				d.Path = text(rawjson.Unquote(value))
			case "from":
				d.From = text(value)
			case "to":
				d.To = text(value)
			}
			m.I = end
		}
		all, e.I = append(all, d), m.I
	}
	return all
}

// newRows makes the rows of what a batch has that is not stored.
func newRows(seen history.Seen, batch []sinks.Message) (rows []history.Row) {
	for _, m := range batch {
		if !hasRow(m.Change) {
			continue
		}
		if r := newRow(m.Change); !seen.Has(&r.Facts, isVersion(m.Change)) {
			rows = append(rows, r)
		}
	}
	return rows
}
