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
	if p.mode() == None {
		return nil, nil
	}
	t, err := path.NewTree(paths)
	if err != nil {
		return nil, err
	}
	r := &redactor{mode: p.mode(), paths: t, secrets: p.SecretMetadata.tree().Over(t), others: annotated.Over(t)}
	if r.mode == HMAC {
		r.hasher = newHasher(key, p.HMAC.Scope)
	}
	ofSecrets, ofOthers := p.describe(key)
	r.secretID, r.otherID = idOf(ofSecrets), idOf(ofOthers)
	return r, nil
}

// conceals says whether the rule hides values of this resource, but for what copies of it hold.
func (r *redactor) conceals(resource event.Resource) bool {
	return r != nil && (r.paths != nil || isSecret(resource))
}

// subject says whose object is redacted.
type subject struct {
	resource event.Resource
	identity string // what hashes are bound to
	stored   bool   // it was redacted before, perhaps in another way: what looks redacted stays as it is
}

// redact returns body without its secret values: body itself where there are none. hidden are the parts of the object in
// which a value was made to look like any other. The error says what is wrong with the body and quotes nothing of it;
// then nothing of the body may be shown.
func (r *redactor) redact(body []byte, of subject) (redacted []byte, hidden parts, err error) {
	t, trusted := r.others, r.paths == nil
	if isSecret(of.resource) {
		t, trusted = r.secrets, false
	}
	w := redaction{redactor: r, b: body, kind: of.resource.Kind, identity: of.identity, stored: of.stored, trusted: trusted}
	if err := w.object(t); err != nil {
		return nil, 0, err
	}
	if w.copies && (len(w.edits) > 0 || w.again) { // what the object holds, a copy that shows nothing of it may have held
		w = redaction{redactor: r, b: body, kind: w.kind, identity: w.identity, stored: w.stored, hideCopies: true}
		if err := w.object(t); err != nil {
			return nil, 0, err
		}
	}
	return w.edits.apply(body), w.hidden, nil
}

// parts is a set of the parts of an object that an update's class tells apart.
type parts uint8

const (
	inMetadata parts = 1 << iota
	inStatus
	inSpec // everywhere else
)

func partOf(name []byte) parts {
	switch string(name) {
	case "metadata":
		return inMetadata
	case "status":
		return inStatus
	}
	return inSpec
}

// redaction is one pass over one object.
type redaction struct {
	*redactor
	b          []byte
	kind       string // of the object
	identity   string
	stored     bool
	trusted    bool // what no path leads into is passed on trust: the source has read it
	hideCopies bool // copies are redacted whatever they hold
	depth      int  // how many copies this one is within

	saysKind  string // of a copy
	edits     edits
	place     []byte // of the value being walked, for hashes that are bound to it
	part      parts  // of the top-level member being walked
	hidden    parts
	again     bool // a value was found that was redacted before
	copies    bool // a copy was found that stays
	duplicate int  // where a name occurs for the second time in one object
}

func (w *redaction) object(t *path.Tree) error {
	start := rawjson.SkipSpace(w.b, 0)
	if start >= len(w.b) || w.b[start] != '{' {
		return rawjson.Malformed(rawjson.Fail(start))
	}
	end := w.walk(start, t, 0)
	if w.duplicate > 0 {
		return &rawjson.MalformedError{What: "a name occurs twice in one object, the second time", Offset: w.duplicate}
	}
	return rawjson.Closed(w.b, end)
}

// step is what becomes of a value.
type step int

const (
	pass step = iota
	conceal
	goThrough // an object or an array, part by part
)

// stepAt says what the tree makes of the value at i.
func stepAt(t *path.Tree, b []byte, i int) step {
	if t == nil || i >= len(b) {
		return pass
	}
	named := t.Names != nil || t.Other != nil || t.Copies
	switch {
	case t.Ends:
		return conceal
	case b[i] == '{' && named, b[i] == '[' && t.Element != nil:
		return goThrough
	case t.Strict && b[i] != 'n' && (b[i] == '{' || b[i] == '[' || named || t.Element != nil):
		return conceal
	}
	return pass
}

// walk redacts what the tree says of the value at i and returns the index behind it.
func (w *redaction) walk(i int, t *path.Tree, depth int) int {
	if depth > rawjson.Deepest {
		return rawjson.Fail(i)
	}
	switch stepAt(t, w.b, i) {
	case conceal:
		return w.conceal(i, depth)
	case goThrough:
		if w.b[i] == '{' {
			return w.members(i, t, depth)
		}
		return w.elements(i, t.Element, depth)
	}
	return w.skip(i, depth)
}

func (w *redaction) skip(i, depth int) int {
	if w.trusted {
		return rawjson.PassValue(w.b, i)
	}
	return rawjson.SkipValue(w.b, i, depth)
}

func (w *redaction) members(i int, t *path.Tree, depth int) int {
	var names rawjson.Names
	out := remover{edits: &w.edits}
	m := rawjson.Enter(w.b, i)
	for m.Next() {
		if names.Twice(m.Key) {
			w.duplicate = m.Start
			return rawjson.Fail(m.Start)
		}
		if depth == 0 {
			w.part = partOf(m.Key)
			w.noteKind(m.Key, m.I)
		}
		next := t.Member(m.Key)
		if t.Copies {
			next = w.annotation(m.Key, m.I, next)
		}
		if w.drops(next, m.I) {
			if m.I = rawjson.SkipValue(w.b, m.I, depth+1); m.I >= 0 {
				out.remove(m.Comma, m.Start, m.I)
				w.hidden |= w.part
			}
			continue
		}
		out.keep(m.Comma)
		outside := w.enter(m.Key)
		m.I = w.walk(m.I, next, depth+1)
		w.place = outside
	}
	return m.I
}

// noteKind notes the kind that a copy says it has.
func (w *redaction) noteKind(name []byte, i int) {
	if w.depth == 0 || string(name) != "kind" {
		return
	}
	if end := rawjson.SkipValue(w.b, i, 0); end >= 0 && w.b[i] == '"' {
		w.saysKind = string(rawjson.Text(w.b[i:end]))
	}
}

func (w *redaction) elements(i int, t *path.Tree, depth int) int {
	out := remover{edits: &w.edits}
	e := rawjson.EnterArray(w.b, i)
	for n := 0; e.Next(); n++ {
		if w.drops(t, e.I) {
			if e.I = rawjson.SkipValue(w.b, e.I, depth+1); e.I >= 0 {
				out.remove(e.Comma, e.Start, e.I)
				w.hidden |= w.part
			}
			continue
		}
		out.keep(e.Comma)
		outside := w.enterElement(n)
		e.I = w.walk(e.I, t, depth+1)
		w.place = outside
	}
	return e.I
}

// drops says that the value at i, with this tree, is left out.
func (w *redaction) drops(t *path.Tree, i int) bool {
	return w.mode == Drop && stepAt(t, w.b, i) == conceal
}

// enter and enterElement go to a member or an element and return the place to come back to.
func (w *redaction) enter(name []byte) (outside []byte) {
	outside = w.place
	if w.hasher != nil {
		w.place = append(append(w.place, '/'), name...)
	}
	return outside
}

func (w *redaction) enterElement(n int) (outside []byte) {
	outside = w.place
	if w.hasher != nil {
		w.place = strconv.AppendInt(append(w.place, '['), int64(n), 10)
	}
	return outside
}

// conceal redacts every single value of the value at i, so that names stay visible.
func (w *redaction) conceal(i, depth int) int {
	if i >= len(w.b) || depth > rawjson.Deepest {
		return rawjson.Fail(i)
	}
	switch w.b[i] {
	case '{':
		m := rawjson.Enter(w.b, i)
		for m.Next() {
			outside := w.enter(m.Key)
			m.I = w.conceal(m.I, depth+1)
			w.place = outside
		}
		return m.I
	case '[':
		e := rawjson.EnterArray(w.b, i)
		for n := 0; e.Next(); n++ {
			outside := w.enterElement(n)
			e.I = w.conceal(e.I, depth+1)
			w.place = outside
		}
		return e.I
	}
	end := rawjson.SkipValue(w.b, i, depth)
	if end >= 0 {
		w.concealScalar(i, end)
	}
	return end
}

func (w *redaction) concealScalar(start, end int) {
	value := w.b[start:end]
	hashes := w.mode == HMAC
	switch {
	case string(value) == "null": // says nothing
		return
	case w.stored && (string(value) == masked || hashes && w.hasher.made(value)): // what it was is not known any more
		w.again = true
	case w.stored && hashes && isHash(value): // with a key that is not to be used any more
		w.edits = append(w.edits, edit{start, end, maskedText})
	case hashes:
		w.edits = append(w.edits, edit{start, end, w.hasher.of(value, w.identity, w.place)})
	default:
		w.edits = append(w.edits, edit{start, end, maskedText})
	}
	if !hashes || string(value) == masked {
		w.hidden |= w.part
	}
}
