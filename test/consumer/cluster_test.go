package consumer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

// cluster is an API server with one resource, as seen by a watch with a label selector. It records every state of every
// object, with which the stream is compared.
type cluster struct {
	rnd      *rand.Rand
	revision int
	exist    int // objects in the selection
	objects  map[string]*thing
	history  []watchEvent // events available to a watch
	past     map[string][]state
	changed  map[int]string // the name that changed, by revision
	count    map[int]int    // number of selected objects, by revision
}

// thing is an object as the API server stores it.
type thing struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		Labels            map[string]string `json:"labels"`
		Finalizers        []string          `json:"finalizers,omitempty"`
		DeletionTimestamp string            `json:"deletionTimestamp,omitempty"`
	} `json:"metadata"`
	Spec   map[string]any `json:"spec"`
	Status map[string]any `json:"status,omitempty"`
}

// state is the selected state of one name from a revision on; body is empty if the object is not selected.
type state struct {
	revision int
	body     string
}

// watchEvent is a watch event.
type watchEvent struct {
	revision int
	kind     string
	object   *deltas.Object
}

const selected = "in"

func newCluster(rnd *rand.Rand) *cluster {
	return &cluster{rnd: rnd, revision: 100, objects: map[string]*thing{}, past: map[string][]state{},
		changed: map[int]string{}, count: map[int]int{}}
}

// writeRandomObjects makes n random writes to the given number of names.
func (c *cluster) writeRandomObjects(n, names int) {
	for range n {
		c.writeObject("o" + strconv.Itoa(c.rnd.IntN(names)))
	}
}

// writeObject creates, changes or deletes one object.
func (c *cluster) writeObject(name string) {
	c.revision++
	defer func() { c.count[c.revision] = c.exist }()
	old := c.objects[name]
	was := old != nil && old.Metadata.Labels[selected] == "yes"
	now := c.nextState(name, old)
	if now != nil {
		now.Metadata.ResourceVersion = strconv.Itoa(c.revision)
		c.objects[name] = now
		is := now.Metadata.Labels[selected] == "yes"
		switch {
		case was && is:
			c.recordEvent("MODIFIED", now)
		case is:
			c.recordEvent("ADDED", now)
		case was: // it leaves the selection: the API server sends its last state in the selection, with the new resourceVersion
			c.recordEvent("DELETED", old.atRevision(c.revision))
		}
		return
	}
	delete(c.objects, name)
	if was {
		c.recordEvent("DELETED", old.atRevision(c.revision))
	}
}

// writeElsewhere writes to another resource.
func (c *cluster) writeElsewhere() {
	c.revision++
	c.count[c.revision] = c.exist
}

// nextState returns the next state of an object; nil if it is deleted.
func (c *cluster) nextState(name string, old *thing) *thing {
	if old == nil {
		t := &thing{Spec: map[string]any{"n": 0}}
		t.Metadata.Name, t.Metadata.Namespace, t.Metadata.UID = name, "ns", fmt.Sprintf("%s-%d", name, c.revision)
		t.Metadata.Labels = map[string]string{selected: "yes"}
		if c.rnd.IntN(5) == 0 {
			t.Metadata.Labels[selected] = "no"
		}
		return t
	}
	t := old.cloneThing()
	if t.Metadata.DeletionTimestamp != "" && c.rnd.IntN(2) == 0 {
		return nil // its finalizer has completed
	}
	switch c.rnd.IntN(8) {
	case 0: // a merge patch
		t.Spec["n"] = c.revision
	case 1: // a JSON patch that adds to a list
		list, _ := t.Spec["list"].([]any)
		t.Spec["list"] = append(slices.Clone(list), c.revision)
	case 2: // a patch that removes
		delete(t.Spec, "list")
		t.Spec["removed"] = c.revision
	case 3:
		t.Status = map[string]any{"observed": c.revision}
	case 4:
		t.Metadata.Finalizers = []string{"example.org/wait"}
	case 5: // enters or leaves the selection
		t.Metadata.Labels[selected] = map[string]string{"yes": "no", "no": "yes"}[t.Metadata.Labels[selected]]
	default:
		if len(t.Metadata.Finalizers) == 0 {
			return nil
		}
		t.Metadata.DeletionTimestamp = "2026-01-02T03:04:05Z"
	}
	return t
}

func (t *thing) cloneThing() *thing {
	d := *t
	d.Metadata.Labels, d.Spec = maps.Clone(t.Metadata.Labels), maps.Clone(t.Spec)
	return &d
}

func (t *thing) atRevision(revision int) *thing {
	d := t.cloneThing()
	d.Metadata.ResourceVersion = strconv.Itoa(revision)
	return d
}

// toObject returns the object as the exporter reads it.
func (t *thing) toObject() *deltas.Object {
	o := deltas.NewObject(t.Metadata.Namespace, t.Metadata.Name)
	o.UID, o.ResourceVersion, o.ObservedAt = t.Metadata.UID, t.Metadata.ResourceVersion, time.Unix(1767323045, 0)
	o.Raw, _ = json.Marshal(t)
	return o
}

func (c *cluster) recordEvent(kind string, t *thing) {
	o := t.toObject()
	c.history = append(c.history, watchEvent{c.revision, kind, o})
	s := state{revision: c.revision}
	switch kind {
	case "ADDED":
		c.exist++
	case "DELETED":
		c.exist--
	}
	if kind != "DELETED" {
		s.body = string(o.Raw)
	}
	c.past[o.Name] = append(c.past[o.Name], s)
	c.changed[c.revision] = o.Name
}

// listObjects returns the current list, sorted by name.
func (c *cluster) listObjects() []*deltas.Object {
	var all []*deltas.Object
	for _, name := range slices.Sorted(maps.Keys(c.objects)) { // the result must depend only on the seed
		if t := c.objects[name]; t.Metadata.Labels[selected] == "yes" {
			all = append(all, t.toObject())
		}
	}
	return all
}

// shownAt returns the selected state of a name at a revision.
func (c *cluster) shownAt(name string, revision int) state {
	var now state
	for _, s := range c.past[name] {
		if s.revision > revision {
			break
		}
		now = s
	}
	return now
}
