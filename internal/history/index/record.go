package index

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// parse returns the change of a stored record, in memory of its own; nil for what no exporter wrote, and for dead
// letters. isRow is set for a row, which is no whole change.
func parse(stored sinks.StoredRecord) (c *event.Change, isRow bool) {
	s, ours := format.ReadStored(stored.Value, stored.Header)
	if !ours {
		return nil, false
	}
	if s.Native == nil {
		return nil, true
	}
	r, err := consumer.Parse(s.Native)
	if err != nil {
		return nil, false
	}
	if c = changeOf(&r); r.Changed != nil {
		if changed := rawjson.Value(s.Native).Member("changed"); !bytes.HasPrefix(changed, []byte(`["`)) {
			c.Changed = bytes.Clone(changed) // with values
		}
	}
	return c, len(stored.Value) == 0 && !s.Type.IsControl()
}

// changeOf returns the change that a record describes.
func changeOf(r *consumer.Record) *event.Change {
	c := &event.Change{Type: event.Type(r.Type), Cluster: r.Cluster, Namespace: r.Namespace, Name: r.Name, UID: r.UID,
		ResourceVersion: r.ResourceVersion, ListVersion: r.ListVersion, ObservedAt: r.ObservedAt, Left: r.Left, Coalesced: r.Coalesced,
		Resource: event.Resource{Group: r.Group, Version: r.Version, Resource: r.Resource, Kind: r.Kind},
		Before:   r.Before, After: r.After, Omitted: r.Omitted}
	_, c.Pass, _ = strings.Cut(strings.TrimPrefix(r.ID, strings.Join([]string{r.Cluster, r.UID, r.ResourceVersion, r.Type}, "/")), "/")
	if t := r.ChangedAt; t != nil {
		c.ChangedAt = event.ChangeTime{At: t.At, NotBefore: t.NotBefore, Source: event.TimeSource(t.Source)}
	}
	if r.Actor != nil {
		c.Actor = &event.Actor{Manager: r.Actor.Manager}
	}
	if r.By != nil && r.By.User != "" {
		c.Attribution = &event.Attribution{Of: r.Of, By: event.Identity{User: r.By.User}, Certainty: r.Certainty}
	}
	if r.Gap != nil {
		c.Gap = &event.GapInfo{From: r.Gap.From, To: r.Gap.To, Reason: r.Gap.Reason}
	}
	if r.Snapshot != nil {
		c.Snapshot = &event.SnapshotInfo{ID: r.Snapshot.ID, Position: r.Snapshot.Position, Count: r.Snapshot.Count}
	}
	return c
}

// markOmitted lets an object that is not whole say so, as rows do: by its first member.
func markOmitted(c *event.Change) {
	names := slices.DeleteFunc(slices.Clone(c.Omitted), func(name string) bool { return name == "before" || name == "changed" })
	if len(names) == 0 || len(c.After) < len("{}") {
		return
	}
	list, err := json.Marshal(map[string][]string{format.OmittedMember: names})
	if err != nil {
		return // not reached: texts
	}
	list[len(list)-1] = ','
	if c.After = append(list, c.After[1:]...); c.After[len(list)] == '}' {
		c.After = slices.Delete(c.After, len(list)-1, len(list))
	}
}

// maxObjects bounds the bytes of the objects that states holds.
const maxObjects = 32 << 20

// states are the newest states of objects, to tell what an update has changed where its record does not. Beyond the bound
// any are forgotten: their next update lists nothing.
type states struct {
	objects map[string][]byte
	bytes   int
	load    func(set func(key string, object []byte) bool) error // of what the index has; nil once that is done
}

// describe sets what an update has changed, and remembers the state.
func (s *states) describe(c *event.Change) error {
	if c.Name == "" || c.Type.IsBeside() {
		return nil
	}
	key := c.Key()
	before := c.Before
	if c.Type == event.Updated && c.Changed == nil && len(c.After) > 0 {
		if before == nil && s.objects[key] == nil && s.load != nil {
			load := s.load
			s.load = nil
			if err := load(func(key string, object []byte) bool {
				if s.objects[key] == nil {
					s.set(key, slices.Clone(object))
				}
				return s.bytes < maxObjects/2
			}); err != nil {
				return err
			}
		}
		if before == nil {
			before = s.objects[key]
		}
		if before != nil {
			c.Changed = diff.Values(before, c.After)
		}
	}
	s.set(key, c.After)
	return nil
}

func (s *states) set(key string, object []byte) {
	s.bytes += len(object) - len(s.objects[key])
	if object == nil {
		delete(s.objects, key)
		return
	}
	s.objects[key] = object
	for any, old := range s.objects {
		if s.bytes <= maxObjects {
			break
		}
		s.bytes -= len(old)
		delete(s.objects, any)
	}
}
