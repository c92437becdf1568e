package corpus

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Resource is one of the two resources of a corpus, both of the core group.
type Resource uint8

// The resources.
const (
	Pods Resource = iota
	Events
	resources
)

// Resources lists them all.
var Resources = [...]Resource{Pods, Events}

// String returns the plural name, as in a URL.
func (r Resource) String() string { return [resources]string{"pods", "events"}[r] }

// Kind returns the kind of the resource's objects.
func (r Resource) Kind() string { return [resources]string{"Pod", "Event"}[r] }

// Type is the type of a watch event.
type Type uint8

// The types of watch events.
const (
	Added Type = iota
	Modified
	Deleted
)

// String returns the type as it stands in a watch frame.
func (t Type) String() string { return [...]string{"ADDED", "MODIFIED", "DELETED"}[t] }

// Options determine a corpus entirely.
type Options struct {
	Objects int    // objects at the start, at least 10
	Changes int    // changes after it
	Seed    uint64 // another seed, other names and another order
	Events  bool   // Events only
}

// Entry is one state of one object, or its end.
type Entry struct {
	Resource Resource
	Type     Type
	Object   int    // index of the object, one for each UID
	RV       uint64 // resourceVersion; unique in the corpus, ascending without a hole in its order
}

// firstRV is where the history begins. It is far from zero, as in a cluster that has lived.
const firstRV = 104_857_600

// epoch is when the objects at the start were created.
var epoch = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

// Corpus is a made-up history. It is immutable and safe for concurrent use.
type Corpus struct {
	entries   []Entry // the objects at the start as Added, then the changes
	objects   []object
	initial   int
	templates [][]template // by family
	seed      uint64
}

// object is what stays the same for the life of one UID.
type object struct {
	family  family
	variant int32 // index into the family's templates
	slot    int32 // determines namespace and name; reused when an object is created again under its name
}

// New makes the corpus of the options.
func New(o Options) (*Corpus, error) {
	if o.Objects < 10 || o.Changes < 0 {
		return nil, fmt.Errorf("a corpus of %d objects and %d changes: expected at least 10 and 0", o.Objects, o.Changes)
	}
	templates, err := makeTemplates(o.Seed)
	if err != nil {
		return nil, err
	}
	p := planner{random: rand.New(rand.NewPCG(o.Seed, 1)), events: o.Events}
	for i := range o.Objects {
		p.create(p.familyOf(i))
	}
	for range o.Changes {
		p.change()
	}
	return &Corpus{entries: p.entries, objects: p.objects, initial: o.Objects, templates: templates, seed: o.Seed}, nil
}

// Initial returns the objects at the start, in the order of their resourceVersions. The caller must not change it.
func (c *Corpus) Initial() []Entry { return c.entries[:c.initial] }

// Changes returns what follows, in order. The caller must not change it.
func (c *Corpus) Changes() []Entry { return c.entries[c.initial:] }

// Entries returns [Corpus.Initial] and [Corpus.Changes] in one. The caller must not change it.
func (c *Corpus) Entries() []Entry { return c.entries }

// ByRV returns the entry with that resourceVersion.
func (c *Corpus) ByRV(rv uint64) (Entry, bool) {
	i := rv - firstRV
	if rv < firstRV || i >= uint64(len(c.entries)) {
		return Entry{}, false
	}
	return c.entries[i], true
}

// Index returns the place of a resourceVersion in [Corpus.Entries]. Only for one that [Corpus.ByRV] knows.
func (c *Corpus) Index(rv uint64) int { return int(rv - firstRV) }

// Key returns "resource/namespace/name" of an object. Objects that were created again share it.
func (c *Corpus) Key(object int) string {
	o := c.objects[object]
	namespace, name := c.name(o)
	return o.family.resource().String() + "/" + namespace + "/" + name
}

// UID returns the UID of an object.
func (c *Corpus) UID(object int) string {
	s := newStream(c.seed, streamUID, uint64(object))
	return string(s.appendUID(nil))
}
