package shape

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// Values of Policy.Changed.
const (
	changedNone  = "none"
	changedPaths = "paths"
	// ChangedValues lists from what to what each place has changed.
	ChangedValues = "values"
)

// rule is a compiled [Policy].
type rule struct {
	redactor        *redactor
	onlyIfChanged   *path.Tree
	ignoreChanges   *path.Tree
	filter          *filter.Filter
	fields          *fieldSelector
	added           annotator
	changed         string
	before          bool // updates carry the state before them
	keepsBodies     bool // states of objects are stored
	metadataOnly    bool // only the metadata of objects is read
	shapeID         uint32
	passesUnchanged bool // never inspects objects

	counters counters
}

// bookkeepingPaths change with every write.
var bookkeepingPaths = []path.Path{
	path.OfNames("metadata", "resourceVersion"),
	path.OfNames("metadata", "generation"),
}

func compileRule(p Policy, options Options) (*rule, error) {
	r := &rule{shapeID: p.shapeID(), changed: p.Changed, before: p.Before == beforeFull || options.AlwaysBefore}
	paths, err := p.parseAllPaths()
	if err != nil {
		return nil, err
	}
	if r.redactor, err = newRedactor(p, paths["redactPaths"], options.Key); err != nil {
		return nil, fmt.Errorf("redactPaths: %w", err)
	}
	if only := paths["onlyIfChanged"]; len(only) > 0 {
		if r.onlyIfChanged, err = path.NewTree(only); err != nil {
			return nil, fmt.Errorf("onlyIfChanged: %w", err)
		}
	}
	if ignore := paths["ignoreChanges"]; len(ignore) > 0 {
		if r.ignoreChanges, err = path.NewTree(append(ignore, bookkeepingPaths...)); err != nil {
			return nil, fmt.Errorf("ignoreChanges: %w", err)
		}
	}
	if r.fields, err = newFieldSelector(paths["fields.keep"], paths["fields.drop"]); err != nil {
		return nil, fmt.Errorf("fields: %w", err)
	}
	if r.added, err = newAnnotator(p.AddAnnotations); err != nil {
		return nil, fmt.Errorf("addAnnotations: %w", err)
	}
	if p.Filter != "" {
		if r.filter, err = filter.Compile(p.Filter, true); err != nil {
			return nil, fmt.Errorf("filter: %w", err)
		}
	}
	describes := r.changed != "" && r.changed != changedNone
	r.keepsBodies = r.before || describes || r.onlyIfChanged != nil || r.ignoreChanges != nil ||
		r.filter != nil && r.filter.UsesOldObject()
	r.passesUnchanged = !r.keepsBodies && r.filter == nil && r.fields == nil && r.redactor == nil && r.added.members == ""
	return r, nil
}

// counters count the decisions of a rule.
type counters struct {
	filtered, unchanged, withheld atomic.Uint64
	failures                      filterFailures
}

// filterFailures counts failed evaluations of a filter.
type filterFailures struct {
	mu    sync.Mutex
	count uint64
	last  string
}

func (f *filterFailures) recordFailure(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	f.last = err.Error()
}

func (f *filterFailures) lastFailure() (count uint64, last string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count, f.last
}

// shapeChanges shapes the changes of a scope without stored bodies.
func (r *rule) shapeChanges(o *event.Observation, of *objectFlags) {
	kept := o.Changes[:0]
	for _, c := range o.Changes {
		if _, keep := r.shapeChange(c, nil, of); keep {
			kept = append(kept, c)
		}
	}
	o.Changes = kept
}

// shapeWithBodies shapes the changes of an observation and stores the newest state of each object.
func (r *rule) shapeWithBodies(o *event.Observation, of *objectFlags, bodies Bodies) error {
	r.redactBodies(o, of)
	kept := o.Changes[:0]
	newest := map[string]*event.Body{} // states within this observation; nil for a deleted object
	for _, c := range o.Changes {
		if c.Type.IsControl() {
			r.shapeChange(c, nil, of)
			kept = append(kept, c)
			continue
		}
		key := objectKey(c)
		last, known := newest[key]
		if !known {
			body, ok, err := bodies.Body(o.Resource.String(), key)
			if err != nil {
				return err
			}
			if ok {
				last = &body
			}
		}
		var before []byte
		if last != nil && last.UID == c.UID && len(last.Raw) > 0 && !of.has(key, otherBody) {
			before = last.Raw // otherwise the redaction or the form alone may be different
		}
		state, keep := r.shapeChange(c, before, of)
		newest[key] = nil
		if c.Type != event.Deleted { // a withheld change stores an empty body, because the stored state is outdated
			newest[key] = &event.Body{Key: key, UID: c.UID, ResourceVersion: c.ResourceVersion, Raw: state}
			if !of.has(key, otherRedaction) { // otherwise no difference is shown until a change is emitted
				of.change(key, 0, otherBody)
			}
		}
		if keep {
			kept = append(kept, c)
		}
	}
	o.Changes = kept
	for _, body := range newest {
		if body != nil {
			o.Bodies = append(o.Bodies, *body)
		}
	}
	return nil
}

// redactBodies annotates and redacts the bodies of an observation. Bodies that cannot be redacted are removed.
func (r *rule) redactBodies(o *event.Observation, of *objectFlags) {
	kept := o.Bodies[:0]
	for _, b := range o.Bodies {
		if r.added.annotate(&b.Raw) != nil {
			continue
		}
		if r.redactor != nil {
			identity := identityOf(&event.Change{Resource: o.Resource, UID: b.UID, Name: b.Key})
			target := subject{resource: o.Resource, key: b.Key, identity: identity}
			var err error
			if b.Raw, _, err = r.redactor.redactBody(b.Raw, target); err != nil {
				continue
			}
		}
		of.change(b.Key, 0, otherBody)
		kept = append(kept, b)
	}
	o.Bodies = kept
}

// objectKey returns the key of the object, as in event.Known.
func objectKey(c *event.Change) string {
	if c.Namespace == "" {
		return c.Name
	}
	return c.Namespace + "/" + c.Name
}

// shapeChange shapes one change. last is the previous state of the object, if known. It returns the redacted new state, also
// for changes that are not emitted, and whether the change is emitted, which it records in of.
func (r *rule) shapeChange(c *event.Change, last []byte, of *objectFlags) (state []byte, keep bool) {
	if c.Type == event.Watermark && (r.filter != nil || r.onlyIfChanged != nil || r.ignoreChanges != nil) {
		c.Watermark.OmitDigest() // the stream lacks objects, or versions of them
	}
	if c.Type.IsControl() {
		return nil, true
	}
	if r.passesUnchanged && !isCompared(c) && of.isEmpty() {
		return nil, true
	}
	emitted := of.mayBeEmitted(c)
	var hidden objectParts
	err := r.added.annotate(&c.Before, &c.After)
	if err == nil {
		hidden, err = r.redactChange(c, &last)
	}
	if err != nil {
		r.withholdChange(c, err)
		return nil, recordDecision(c, !isCompared(c) || !emitted, of)
	}
	state = c.After
	if c.Type == event.Deleted && c.Before == nil {
		c.Before = last
	}
	if r.isUnchanged(c, last, hidden) {
		r.counters.unchanged.Add(1)
		return state, recordDecision(c, false, of)
	}
	if keep = r.isEmitted(c, last, emitted); keep {
		if err := r.applyFields(c, last); err != nil {
			r.withholdChange(c, err)
		}
	}
	return state, recordDecision(c, keep, of)
}

// isCompared reports whether c is about an object that was known in the same version: a comparison with an edited filter
// looks at it again.
func isCompared(c *event.Change) bool {
	return c.Type == event.Added && c.Previous == c.ResourceVersion
}

func recordDecision(c *event.Change, keep bool, of *objectFlags) bool {
	switch {
	case keep && isCompared(c):
		c.Previous = ""
		of.recordEmitted(c)
	case keep:
		of.recordEmitted(c)
	case !isCompared(c):
		of.recordFiltered(c)
	}
	return keep
}

// isEmitted evaluates the filter. emitted is whether a destination may have the object: then its delete is emitted too. In a
// comparison with an edited filter, an object that does not match any more leaves, and one that does begins as added.
func (r *rule) isEmitted(c *event.Change, last []byte, emitted bool) bool {
	compared := isCompared(c)
	if compared {
		last = nil
	}
	matches, err := r.matchesFilter(c, last)
	switch {
	case compared && matches:
		return !emitted
	case c.Type == event.Deleted && !emitted && (c.Previous != "" || c.FinalStateUnknown) &&
		(err != nil || c.Left || c.Pass != "" && r.matchesState(c)): // no destination has it, because of another filter
		return false
	case c.Type == event.Updated && c.Pass != "" && !emitted && matches:
		c.Type, c.Class = event.Added, ""
		return true
	case matches:
		return true
	case c.Type == event.Deleted && emitted && !r.filter.ExcludesDeletes():
		return true
	case emitted && c.Pass != "" && (compared || c.Type == event.Updated) && r.excludesState(c):
		c.Type, c.Delta, c.Class, c.Left, c.FinalStateUnknown, c.After = event.Deleted, event.DeltaDeleted, "", true, true, nil
		return true
	case !compared:
		r.counters.filtered.Add(1)
	}
	return false
}

// excludesState reports whether the filter leaves out an object because of its state, and not for how it has changed.
func (r *rule) excludesState(c *event.Change) bool {
	return r.filter.SelectsObjects() && !r.matchesState(c)
}

// matchesState reports whether the filter would emit an object as added in the state that a change shows.
func (r *rule) matchesState(c *event.Change) bool {
	state := *c
	if state.Class, state.Actor = "", nil; c.Type == event.Deleted {
		state.After, state.Before = c.Before, nil
	}
	state.Type = event.Added
	matches, _ := r.matchesFilter(&state, nil)
	return matches
}

// withholdChange removes everything except the identity from a change, and counts it.
func (r *rule) withholdChange(c *event.Change, err error) {
	r.counters.withheld.Add(1)
	withholdBodies(c, err)
}

func withholdBodies(c *event.Change, err error) {
	c.Before, c.After, c.Changed = nil, nil, nil
	c.Withheld = fmt.Sprintf("bodies withheld because the change cannot be shaped: %v", err)
}

// redactChange redacts the bodies of a change and the previous state. The previous state was redacted when it was stored,
// but perhaps under another configuration. It is the last one, so that a copy found in the new state is redacted in it too.
func (r *rule) redactChange(c *event.Change, last *[]byte) (hidden objectParts, err error) {
	if r.redactor == nil {
		return 0, nil
	}
	target := subject{resource: c.Resource, identity: identityOf(c)}
	if r.redactor.hidesValuesOf(c.Resource) {
		target.key = objectKey(c)
	}
	for _, body := range [...]*[]byte{&c.Before, &c.After, last} {
		target.stored = body == last
		if *body == nil {
			continue
		}
		var in objectParts
		if *body, in, err = r.redactor.redactBody(*body, target); err != nil {
			return 0, err
		}
		hidden |= in
	}
	return hidden, nil
}

// isUnchanged reports whether an update changed nothing relevant for onlyIfChanged or ignoreChanges. It returns false if a
// masked value may have changed or the states cannot be compared.
func (r *rule) isUnchanged(c *event.Change, last []byte, hidden objectParts) bool {
	if r.onlyIfChanged == nil && r.ignoreChanges == nil || c.Type != event.Updated || last == nil || c.After == nil {
		return false
	}
	if hidden&partOfClass[c.Class] != 0 { // a masked value may have changed
		return false
	}
	if r.onlyIfChanged != nil {
		if yes, err := diff.DiffersAt(last, c.After, r.onlyIfChanged); yes || err != nil {
			return false
		}
		return true
	}
	ok, err := diff.EqualExcept(last, c.After, r.ignoreChanges)
	return ok && err == nil
}

// partOfClass maps the class of an update to the parts that it may have changed. For redacted values, the class is the only
// indication of a change.
var partOfClass = map[event.Class]objectParts{
	event.ClassDeleting: inMetadata | inStatus | inSpec, // may coincide with any other change
	event.ClassSpec:     inMetadata | inStatus | inSpec, // may coincide with any other change
	event.ClassStatus:   inMetadata | inStatus,
	event.ClassMetadata: inMetadata,
	"":                  inMetadata | inStatus | inSpec,
}

// matchesFilter evaluates the filter. If the evaluation fails, the change matches, so that an error loses nothing.
func (r *rule) matchesFilter(c *event.Change, last []byte) (yes bool, err error) {
	if r.filter == nil {
		return true, nil
	}
	if yes, err = r.filter.Matches(c, last); err != nil {
		r.counters.failures.recordFailure(err)
	}
	return yes || err != nil, err
}

// applyFields removes fields from the bodies, and adds the differences and the previous state.
func (r *rule) applyFields(c *event.Change, last []byte) error {
	if r.fields != nil {
		for _, body := range [...]*[]byte{&c.Before, &c.After, &last} {
			if *body == nil {
				continue
			}
			var err error
			if *body, err = r.fields.selectFrom(*body); err != nil {
				return err
			}
		}
	}
	if c.Type != event.Updated || last == nil || c.After == nil {
		return nil
	}
	switch r.changed {
	case ChangedValues:
		c.Changed = diff.Values(last, c.After)
	case changedPaths:
		c.Changed = diff.Paths(last, c.After)
	}
	if r.before {
		c.Before = last
	}
	return nil
}

// flags are what distinguishes a known object from one that was last emitted, and is stored, as the rule has it now.
type flags uint8

const (
	otherRedaction flags = 1 << iota // last emitted under another redaction
	otherBody                        // its stored body is of another redaction or form
	otherShape                       // last emitted in another form, or under other keys of its rule than redaction and filter
	notEmitted                       // a filter has left it out: no destination has it
)

// outdated are the flags of an object that destinations have as its rule was before an edit.
const outdated = otherRedaction | otherShape

// objectFlags holds the flags of the objects of one resource that have some. It holds hashes of keys; a collision only sets
// RedactionChanged, or leaves out a state before, unnecessarily. Safe for concurrent use.
type objectFlags struct {
	mu       sync.Mutex
	byKey    map[uint64]flags
	outdated int // objects with a flag of outdated
}

var flagsSeed = maphash.MakeSeed()

func (f *objectFlags) has(key string, one flags) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byKey) > 0 && f.byKey[maphash.String(flagsSeed, key)]&one != 0
}

// isEmpty reports whether no object has a flag.
func (f *objectFlags) isEmpty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byKey) == 0
}

// mayBeEmitted reports whether a destination may have the object of a change from before.
func (f *objectFlags) mayBeEmitted(c *event.Change) bool {
	return (c.Previous != "" || c.FinalStateUnknown) && (f.isEmpty() || !f.has(objectKey(c), notEmitted))
}

// change sets some flags of an object and clears others.
func (f *objectFlags) change(key string, set, clear flags) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.byKey) == 0 && set == 0 {
		return
	}
	hash := maphash.String(flagsSeed, key)
	now := f.byKey[hash]&^clear | set
	f.outdated += countOutdated(now) - countOutdated(f.byKey[hash])
	if now != 0 {
		if f.byKey == nil {
			f.byKey = map[uint64]flags{}
		}
		f.byKey[hash] = now
	} else {
		delete(f.byKey, hash)
	}
}

func countOutdated(of flags) int {
	if of&outdated != 0 && of&notEmitted == 0 {
		return 1
	}
	return 0
}

// recordEmitted clears the flags of an object whose change is emitted, and sets RedactionChanged on the first one under the
// current redaction.
func (f *objectFlags) recordEmitted(c *event.Change) {
	if c.Type.IsControl() || f.isEmpty() && !c.Left {
		return
	}
	key := objectKey(c)
	c.RedactionChanged = c.RedactionChanged || f.has(key, otherRedaction) && claimsDifference(c.Type)
	f.change(key, 0, outdated|otherBody|notEmitted)
	if c.Left { // an object that is gone is removed with what is known of it
		f.change(key, notEmitted, 0)
	}
}

// recordFiltered records that a change is not emitted. If it would have been the first of the object, no destination has it.
func (f *objectFlags) recordFiltered(c *event.Change) {
	if c.Previous == "" || c.Type == event.Snapshot && c.OnlySink == "" {
		f.change(objectKey(c), notEmitted, 0)
	}
}

// claimsDifference reports whether consumers compare a change of this type with their state of the object.
func claimsDifference(t event.Type) bool {
	return t == event.Updated || t == event.Deleted || t == event.Sync
}

// edit replaces the bytes in [start, end).
type edit struct {
	start, end int
	text       []byte // nil removes the bytes
}

// edits are in ascending order and do not overlap.
type edits []edit

// applyTo returns a copy of b with the edits applied; b itself if there are none.
func (all edits) applyTo(b []byte) []byte {
	if len(all) == 0 {
		return b
	}
	size := len(b)
	for _, e := range all {
		size += len(e.text) - (e.end - e.start)
	}
	out, at := make([]byte, 0, size), 0
	for _, e := range all {
		out = append(append(out, b[at:e.start]...), e.text...)
		at = e.end
	}
	return append(out, b[at:]...)
}

// remover removes members of an object or elements of an array, with one comma each, so that the result is valid JSON.
// removeItem or keepItem must be called for every item, in order.
type remover struct {
	edits *edits
	kept  bool
}

// removeItem removes the item from start to end; comma is the index of the comma before it, -1 for the first item.
func (r *remover) removeItem(comma, start, end int) {
	if comma >= 0 {
		start = comma
	}
	*r.edits = append(*r.edits, edit{start: start, end: end})
}

// keepItem keeps an item. It must be called before edits inside the item are added.
func (r *remover) keepItem(comma int) {
	if !r.kept && comma >= 0 { // all preceding items were removed
		*r.edits = append(*r.edits, edit{start: comma, end: comma + 1})
	}
	r.kept = true
}
