package shape

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// Values of Policy.Redact.
const (
	Mask = "mask" // values become "***"
	Drop = "drop" // members with secret values are removed
	HMAC = "hmac" // values become a keyed hash; equal values have equal hashes
	None = "none" // values are shown
)

const masked = `"***"`

var maskedText = []byte(masked)

// redactor redacts secret values in the objects of one rule. Safe for concurrent use.
type redactor struct {
	mode    string
	secrets *path.Tree  // for Secrets
	paths   *path.Tree  // the rule's paths, for any object; nil if there are none
	others  *path.Tree  // paths, and the annotations of every object
	tails   []path.Path // of paths, see copySearch
	hasher  *hasher     // nil unless the mode is hmac
	memory  *copyMemory // nil: annotations are judged by the present values of the object alone

	secretID, otherID uint32 // see redactionID
}

// newRedactor returns nil if the mode is none. paths are the parsed paths of the policy.
func newRedactor(p Policy, paths []path.Path, key []byte) (*redactor, error) {
	if p.redactMode() == None {
		return nil, nil
	}
	t, err := path.NewTree(paths)
	if err != nil {
		return nil, err
	}
	r := &redactor{
		mode: p.redactMode(), paths: t, tails: tailsOf(paths),
		secrets: p.SecretMetadata.redactionTree().Union(t), others: annotationsTree.Union(t),
	}
	if r.mode == HMAC {
		r.hasher = newHasher(key, p.HMAC.Scope)
	}
	ofSecrets, ofOthers := p.describeRedaction(key)
	r.secretID, r.otherID = hashDescription(ofSecrets), hashDescription(ofOthers)
	return r, nil
}

// hidesValuesOf reports whether the rule redacts values of this resource, apart from copies in annotations.
func (r *redactor) hidesValuesOf(resource event.Resource) bool {
	return r != nil && (r.paths != nil || isSecret(resource))
}

// subject identifies the object that is redacted.
type subject struct {
	resource event.Resource
	key      string // as in event.Known
	identity string // included in hashes of scope object
	stored   bool   // already redacted, perhaps under another configuration: redacted values stay unchanged
	partial  bool   // the values of the object, which annotations may have copies of, are not in the body
}

// redactBody returns body with its secret values redacted; body itself if there are none. hidden is the set of parts with a
// value that became indistinguishable from others. An error describes the problem without quoting the body, which must not
// be shown then.
func (r *redactor) redactBody(body []byte, target subject) (redacted []byte, hidden objectParts, err error) {
	t, secret := r.others, isSecret(target.resource)
	if secret {
		t = r.secrets
	}
	w := redactionPass{
		redactor: r, b: body, kind: target.resource.Kind, identity: target.identity, stored: target.stored,
		secret: secret, trusted: !secret && r.paths == nil,
	}
	if r.memory != nil && target.key != "" && !w.trusted {
		w.remembered = r.memory.loadObject(target.resource, target.key)
	}
	if target.partial && r.hidesValuesOf(target.resource) {
		w.remembered = &objectCopies{unknown: true}
	}
	if err := w.redactObject(t); err != nil {
		return nil, 0, err
	}
	// A copy without redactions may still hold earlier, secret values of the object.
	hideCopies := w.keptCopies && (len(w.edits) > 0 || w.foundRedacted)
	if copies := w.findCopies(); hideCopies || len(copies) > 0 {
		w = redactionPass{
			redactor: r, b: body, kind: w.kind, identity: w.identity, stored: w.stored, secret: secret,
			hideCopies: hideCopies, copies: copies, remembered: w.remembered,
		}
		if err := w.redactObject(t); err != nil {
			return nil, 0, err
		}
	}
	if w.remembered != nil && !target.partial {
		w.remembered.resolve(target.stored)
		r.memory.storeObject(target.resource, target.key, w.remembered)
	}
	return w.edits.applyTo(body), w.hidden, nil
}

// objectParts is a set of the parts of an object that the class of an update distinguishes.
type objectParts uint8

const (
	inMetadata objectParts = 1 << iota
	inStatus
	inSpec // everything else
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
	secret     bool         // the object is a Secret
	trusted    bool         // subtrees without paths are skipped without validation, because the source has parsed them
	hideCopies bool         // redact copies regardless of their contents
	copies     map[int]bool // where annotations of any name start that hold redacted values
	depth      int          // nesting level of copies
	remembered *objectCopies

	declaredKind  string // kind member of a copy
	edits         edits
	location      []byte      // path of the current value, for hashes of scope object
	part          objectParts // part of the current top-level member
	hidden        objectParts
	foundRedacted bool   // a value that was already redacted was found
	keptCopies    bool   // a copy was kept
	values        []span // that were redacted
	kept          []span // annotations that hold JSON, and are shown
	duplicate     int    // index of a duplicate name; 0 if none
}

func (w *redactionPass) redactObject(t *path.Tree) error {
	start := rawjson.SkipSpace(w.b, 0)
	if start >= len(w.b) || w.b[start] != '{' {
		return rawjson.MalformedAt(w.b, rawjson.FailAt(start))
	}
	end := w.walkValue(start, t, 0)
	if w.duplicate > 0 {
		return &rawjson.MalformedError{What: "duplicate name in one object", Offset: w.duplicate}
	}
	return rawjson.CheckEnd(w.b, end)
}

// valueAction is the treatment of one value.
type valueAction int

const (
	actionPass valueAction = iota
	actionConceal
	actionDescend // an object or array, item by item
)

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

// walkValue redacts the value at i according to the tree and returns the index after it.
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
	default:
		return w.skipValue(i, depth)
	}
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
			start := m.I
			if m.I = rawjson.SkipValue(w.b, m.I, depth+1); m.I >= 0 {
				out.removeItem(m.Comma, m.Start, m.I)
				w.recordHidden(start, m.I)
			}
			continue
		}
		out.keepItem(m.Comma)
		outside := w.enterMember(m.Key)
		m.I = w.walkValue(m.I, next, depth+1)
		w.location = outside
		if w.trusted && w.depth == 0 && depth == 0 && w.part == inMetadata && m.I >= 0 {
			return len(w.b) // nothing behind the metadata of an object is redacted, and the source has scanned it
		}
	}
	return m.I
}

// recordKind records the kind member of a copy.
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
				w.recordHidden(e.Start, e.I)
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

// span is a range of the object.
type span struct{ start, end int }

// recordHidden records that a value is no longer distinguishable from others.
func (w *redactionPass) recordHidden(start, end int) {
	w.hidden |= w.part
	w.values = append(w.values, span{start, end})
}

// isDropped reports whether the value at i is removed.
func (w *redactionPass) isDropped(t *path.Tree, i int) bool {
	return w.mode == Drop && actionAt(t, w.b, i) == actionConceal
}

// enterMember and enterElement extend the location and return the previous one, to be restored afterwards.
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

// concealValue redacts every scalar within the value at i; names stay visible.
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
	case string(value) == "null": // null reveals nothing
		return
	case w.stored && (string(value) == masked || hashes && w.hasher.isOwnHash(value)):
		w.foundRedacted = true // the original value is no longer known
	case w.stored && hashes && isHash(value): // hashed with a key that must not be used any more
		w.edits = append(w.edits, edit{start, end, maskedText})
	case hashes:
		w.edits = append(w.edits, edit{start, end, w.hasher.hashValue(value, w.identity, w.location)})
	default:
		w.edits = append(w.edits, edit{start, end, maskedText})
	}
	if w.values = append(w.values, span{start, end}); !hashes || string(value) == masked {
		w.hidden |= w.part
	}
}

// redactionID returns an ID of everything that determines the redaction of a resource, including the key.
func (r *redactor) redactionID(resource event.Resource) uint32 {
	if isSecret(resource) && r != nil {
		return r.secretID
	}
	if r == nil {
		return firstRedaction
	}
	return r.otherID
}

func hashDescription(description string) uint32 {
	sum := sha256.Sum256([]byte(description))
	return max(binary.BigEndian.Uint32(sum[:]), firstRedaction+1)
}

// redactionVersion is increased when the same configuration redacts different values than before; redactionVersionOfPaths
// when only one with paths does.
const (
	redactionVersion        = 2
	redactionVersionOfPaths = 4
)

// describeRedaction returns everything that the redaction of a policy depends on, for Secrets and for other resources.
func (p Policy) describeRedaction(key []byte) (secret, other string) {
	paths := slices.Sorted(slices.Values(p.RedactPaths))
	version := redactionVersion
	if len(paths) > 0 {
		version = redactionVersionOfPaths
	}
	other = fmt.Sprintf("%d %s %q", version, p.redactMode(), paths)
	if p.redactMode() == HMAC {
		other += " " + newHasher(key, p.HMAC.Scope).prefix
	}
	return other + " " + fmt.Sprintf("%q %q", p.SecretMetadata.Labels, p.SecretMetadata.Annotations), other
}

// Fingerprint returns a hash of everything that the redaction of a policy depends on. It does not reveal the key.
func (p Policy) Fingerprint(key []byte) string {
	if p.redactMode() == None {
		return None
	}
	secret, _ := p.describeRedaction(key)
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:16])
}
