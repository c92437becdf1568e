package history

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	return c.Pass == "" && slices.Contains([]event.Type{event.Added, event.Updated, event.Deleted, event.Attributed}, c.Type)
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
	for one := range rawjson.Value(changed).Elements() {
		if one.IsText() { // of a rule that listed paths alone when this was journaled
			all = append(all, history.Difference{Path: text(rawjson.Unquote(one))})
			continue
		}
		var d history.Difference
		for name, value := range one.Members() {
			switch string(name) {
			case "path":
				d.Path = text(rawjson.Unquote(value))
			case "from":
				d.From = text(value)
			case "to":
				d.To = text(value)
			}
		}
		all = append(all, d)
	}
	return all
}

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

// changeOf makes the change of a row, as far as redaction looks at it. It refers to its memory.
func changeOf(r *history.Row) (c *event.Change, err error) {
	c = &event.Change{Type: event.Type(r.Type), Cluster: r.Cluster, Namespace: r.Namespace, Name: r.Name, UID: r.UID,
		ResourceVersion: r.ResourceVersion,
		Resource:        event.Resource{Group: r.Group, Version: r.Version, Resource: r.Resource, Kind: r.Kind}}
	switch r.Type {
	case history.Alive:
		c.Type = event.Snapshot
	case history.Left:
		c.Type = event.Deleted
	}
	if r.Object != "" {
		c.After = []byte(r.Object)
	}
	var all []difference
	for _, d := range r.Changed {
		all = append(all, difference{d.Path, json.RawMessage(d.From), json.RawMessage(d.To)})
	}
	if all != nil {
		c.Changed, err = json.Marshal(all)
	}
	return c, err
}

// difference is a member of event.Change.Changed.
type difference struct {
	Path string          `json:"path"`
	From json.RawMessage `json:"from,omitempty"`
	To   json.RawMessage `json:"to,omitempty"`
}

// Redact writes the files of a history again whose rows redact changes, and returns how many rows that were. No file has
// what was redacted afterwards. An exporter that writes to a folder meanwhile is an error; one that writes to a bucket is
// fenced.
func Redact(cfg Config, redact func(*event.Change) bool) (rows int64, err error) {
	in, err := cfg.Store()
	if err != nil {
		return 0, err
	}
	if m, err := history.ReadManifest(in); err != nil || m.Version == 0 {
		return 0, cmp.Or(err, fmt.Errorf("%s holds no history", in))
	}
	w, err := history.OpenWriter(in)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", in, err)
	}
	rows, err = w.Rewrite(func(r *history.Row) bool {
		c, err := changeOf(r)
		if !redact(c) && err == nil { // values that are no JSON are left out
			return false
		}
		r.Object, r.Changed = text(c.After), differences(c.Changed)
		return true
	})
	return rows, errors.Join(err, w.Close())
}
