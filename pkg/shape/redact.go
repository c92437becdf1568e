package shape

import (
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// The ways to redact.
const (
	Mask = "mask" // values become "***"
	Drop = "drop" // members that hold values are left out
	HMAC = "hmac" // values become a keyed hash: equal values stay equal
	None = "none" // values stay
)

const masked = `"***"`

var maskedText = []byte(masked)

// redactor takes secret values out of the objects of one rule. It is safe for concurrent use.
type redactor struct {
	mode    string
	secrets *path.Tree // for Secrets
	paths   *path.Tree // what the rule's paths name, in any object; nil for nothing
	others  *path.Tree // paths, and the annotations of every object
	hasher  *hasher    // nil but for hmac

	secretID, otherID uint32 // see id
}

// newRedactor returns nil for a mode that shows everything. The paths are those of the policy.
func newRedactor(p Policy, paths []path.Path, key []byte) (*redactor, error) {
	if p.redactMode() == None {
		return nil, nil
	}
	t, err := path.NewTree(paths)
	if err != nil {
		return nil, err
	}
	r := &redactor{mode: p.redactMode(), paths: t, secrets: p.SecretMetadata.redactionTree().Union(t), others: annotationsTree.Union(t)}
	if r.mode == HMAC {
		r.hasher = newHasher(key, p.HMAC.Scope)
	}
	ofSecrets, ofOthers := p.describeRedaction(key)
	r.secretID, r.otherID = hashDescription(ofSecrets), hashDescription(ofOthers)
	return r, nil
}

// hidesValuesOf says whether the rule hides values of this resource, but for what copies of it hold.
func (r *redactor) hidesValuesOf(resource event.Resource) bool {
	return r != nil && (r.paths != nil || isSecret(resource))
}

// subject says whose object is redacted.
type subject struct {
	resource event.Resource
	identity string // what hashes are bound to
	stored   bool   // it was redacted before, perhaps in another way: what looks redacted stays as it is
}

// redactBody returns body without its secret values: body itself where there are none. hidden are the parts of the object in
// which a value was made to look like any other. The error says what is wrong with the body and quotes nothing of it;
// then nothing of the body may be shown.
func (r *redactor) redactBody(body []byte, of subject) (redacted []byte, hidden objectParts, err error) {
	t, trusted := r.others, r.paths == nil
	if isSecret(of.resource) {
		t, trusted = r.secrets, false
	}
	w := redactionPass{redactor: r, b: body, kind: of.resource.Kind, identity: of.identity, stored: of.stored, trusted: trusted}
	if err := w.redactObject(t); err != nil {
		return nil, 0, err
	}
	if w.keptCopies && (len(w.edits) > 0 || w.foundRedacted) { // what the object holds, a copy that shows nothing of it may have held
		w = redactionPass{redactor: r, b: body, kind: w.kind, identity: w.identity, stored: w.stored, hideCopies: true}
		if err := w.redactObject(t); err != nil {
			return nil, 0, err
		}
	}
	return w.edits.applyTo(body), w.hidden, nil
}

// objectParts is a set of the parts of an object that an update's class tells apart.
type objectParts uint8

const (
	inMetadata objectParts = 1 << iota
	inStatus
	inSpec // everywhere else
)

func partOf(name []byte) objectParts {
	switch string(name) {
	case "metadata":
		return inMetadata
	case "status":
		return inStatus
	}
	return inSpec
}

// redactionPass is one pass over one object.
type redactionPass struct {
	*redactor
	b          []byte
	kind       string // of the object
	identity   string
	stored     bool
	trusted    bool // what no path leads into is passed on trust: the source has read it
	hideCopies bool // copies are redacted whatever they hold
	depth      int  // how many copies this one is within

	declaredKind  string // of a copy
	edits         edits
	location      []byte      // of the value being walked, for hashes that are bound to it
	part          objectParts // of the top-level member being walked
	hidden        objectParts
	foundRedacted bool // a value was found that was redacted before
	keptCopies    bool // a copy was found that stays
	duplicate     int  // where a name occurs for the second time in one object
}

func (w *redactionPass) redactObject(t *path.Tree) error {
	start := rawjson.SkipSpace(w.b, 0)
	if start >= len(w.b) || w.b[start] != '{' {
		return rawjson.MalformedAt(rawjson.FailAt(start))
	}
	end := w.walkValue(start, t, 0)
	if w.duplicate > 0 {
		return &rawjson.MalformedError{What: "a name occurs twice in one object, the second time", Offset: w.duplicate}
	}
	return rawjson.CheckEnd(w.b, end)
}

// valueAction is what becomes of a value.
type valueAction int

const (
	actionPass valueAction = iota
	actionConceal
	actionDescend // an object or an array, part by part
)

// actionAt says what the tree makes of the value at i.
func actionAt(t *path.Tree, b []byte, i int) valueAction {
	if t == nil || i >= len(b) {
		return actionPass
	}
	named := t.Names != nil || t.Other != nil || t.Copies
	switch {
	case t.Ends:
		return actionConceal
	case b[i] == '{' && named, b[i] == '[' && t.Element != nil:
		return actionDescend
	case t.Strict && b[i] != 'n' && (b[i] == '{' || b[i] == '[' || named || t.Element != nil):
		return actionConceal
	}
	return actionPass
}

// walkValue redacts what the tree says of the value at i and returns the index behind it.
func (w *redactionPass) walkValue(i int, t *path.Tree, depth int) int {
	if depth > rawjson.MaxDepth {
		return rawjson.FailAt(i)
	}
	switch actionAt(t, w.b, i) {
	case actionConceal:
		return w.concealValue(i, depth)
	case actionDescend:
		if w.b[i] == '{' {
			return w.walkMembers(i, t, depth)
		}
		return w.walkElements(i, t.Element, depth)
	}
	return w.skipValue(i, depth)
}

func (w *redactionPass) skipValue(i, depth int) int {
	if w.trusted {
		return rawjson.SkipTrustedValue(w.b, i)
	}
	return rawjson.SkipValue(w.b, i, depth)
}

func (w *redactionPass) walkMembers(i int, t *path.Tree, depth int) int {
	var names rawjson.Names
	out := remover{edits: &w.edits}
	m := rawjson.EnterObject(w.b, i)
	for m.Next() {
		if names.IsDuplicate(m.Key) {
			w.duplicate = m.Start
			return rawjson.FailAt(m.Start)
		}
		if depth == 0 {
			w.part = partOf(m.Key)
			w.recordKind(m.Key, m.I)
		}
		next := t.Member(m.Key)
		if t.Copies {
			next = w.annotationTree(m.Key, m.I, next)
		}
		if w.isDropped(next, m.I) {
			if m.I = rawjson.SkipValue(w.b, m.I, depth+1); m.I >= 0 {
				out.removeItem(m.Comma, m.Start, m.I)
				w.hidden |= w.part
			}
			continue
		}
		out.keepItem(m.Comma)
		outside := w.enterMember(m.Key)
		m.I = w.walkValue(m.I, next, depth+1)
		w.location = outside
	}
	return m.I
}

// recordKind notes the kind that a copy says it has.
func (w *redactionPass) recordKind(name []byte, i int) {
	if w.depth == 0 || string(name) != "kind" {
		return
	}
	if end := rawjson.SkipValue(w.b, i, 0); end >= 0 && w.b[i] == '"' {
		w.declaredKind = string(rawjson.Unquote(w.b[i:end]))
	}
}

func (w *redactionPass) walkElements(i int, t *path.Tree, depth int) int {
	out := remover{edits: &w.edits}
	e := rawjson.EnterArray(w.b, i)
	for n := 0; e.Next(); n++ {
		if w.isDropped(t, e.I) {
			if e.I = rawjson.SkipValue(w.b, e.I, depth+1); e.I >= 0 {
				out.removeItem(e.Comma, e.Start, e.I)
				w.hidden |= w.part
			}
			continue
		}
		out.keepItem(e.Comma)
		outside := w.enterElement(n)
		e.I = w.walkValue(e.I, t, depth+1)
		w.location = outside
	}
	return e.I
}

// isDropped says that the value at i, with this tree, is left out.
func (w *redactionPass) isDropped(t *path.Tree, i int) bool {
	return w.mode == Drop && actionAt(t, w.b, i) == actionConceal
}

// enterMember and enterElement go to a member or an element and return the place to come back to.
func (w *redactionPass) enterMember(name []byte) (outside []byte) {
	outside = w.location
	if w.hasher != nil {
		w.location = append(append(w.location, '/'), name...)
	}
	return outside
}

func (w *redactionPass) enterElement(n int) (outside []byte) {
	outside = w.location
	if w.hasher != nil {
		w.location = strconv.AppendInt(append(w.location, '['), int64(n), 10)
	}
	return outside
}

// concealValue redacts every single value of the value at i, so that names stay visible.
func (w *redactionPass) concealValue(i, depth int) int {
	if i >= len(w.b) || depth > rawjson.MaxDepth {
		return rawjson.FailAt(i)
	}
	switch w.b[i] {
	case '{':
		m := rawjson.EnterObject(w.b, i)
		for m.Next() {
			outside := w.enterMember(m.Key)
			m.I = w.concealValue(m.I, depth+1)
			w.location = outside
		}
		return m.I
	case '[':
		e := rawjson.EnterArray(w.b, i)
		for n := 0; e.Next(); n++ {
			outside := w.enterElement(n)
			e.I = w.concealValue(e.I, depth+1)
			w.location = outside
		}
		return e.I
	}
	end := rawjson.SkipValue(w.b, i, depth)
	if end >= 0 {
		w.concealScalar(i, end)
	}
	return end
}

func (w *redactionPass) concealScalar(start, end int) {
	value := w.b[start:end]
	hashes := w.mode == HMAC
	switch {
	case string(value) == "null": // says nothing
		return
	case w.stored && (string(value) == masked || hashes && w.hasher.isOwnHash(value)): // what it was is not known any more
		w.foundRedacted = true
	case w.stored && hashes && isHash(value): // with a key that is not to be used any more
		w.edits = append(w.edits, edit{start, end, maskedText})
	case hashes:
		w.edits = append(w.edits, edit{start, end, w.hasher.hashValue(value, w.identity, w.location)})
	default:
		w.edits = append(w.edits, edit{start, end, maskedText})
	}
	if !hashes || string(value) == masked {
		w.hidden |= w.part
	}
}
