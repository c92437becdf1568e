package shape

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// The ways to redact.
const (
	Mask = "mask" // values become "***"
	Drop = "drop" // members that hold values are left out
	HMAC = "hmac" // values become a keyed hash: equal values stay equal
	None = "none" // values stay
)

const (
	masked     = `"***"`
	hashPrefix = "hmac-sha256:"
	hashLength = 16 // bytes of the hash that are written; enough to never meet by chance
)

// lastApplied is the annotation in which kubectl apply keeps a copy of the object, its values included.
var lastApplied = path{{name: "metadata"}, {name: "annotations"}, {name: "kubectl.kubernetes.io/last-applied-configuration"}}

// shown are the members of a Secret that hold no secret. Whatever else one has is redacted.
var shown = []string{"apiVersion", "kind", "metadata", "type", "immutable"}

func isSecret(r event.Resource) bool { return r.Group == "" && r.Resource == "secrets" }

// redactor takes secret values out of the objects of one rule. It is safe for concurrent use.
type redactor struct {
	mode    string
	secrets *tree // for Secrets
	paths   *tree // for everything else; nil where no path is configured
	hashes  *sync.Pool
}

// newRedactor returns nil for a mode that shows everything.
func newRedactor(mode string, paths []path, key []byte) (*redactor, error) {
	if mode == None {
		return nil, nil
	}
	r := &redactor{mode: mode, hashes: &sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}
	var err error
	if len(paths) > 0 {
		if r.paths, err = grow(lastApplied, paths); err != nil {
			return nil, err
		}
	}
	r.secrets, err = secretTree(paths)
	return r, err
}

// secretTree is the tree of everything in a Secret that is not known to be public, and of paths.
func secretTree(paths []path) (*tree, error) {
	grown, err := grow(nil, append([]path{lastApplied}, paths...))
	if err != nil {
		return nil, err
	}
	root := *grown
	root.names, root.other = map[string]*tree{}, &tree{ends: true}
	for _, name := range shown {
		root.names[name] = grown.member([]byte(name))
	}
	return &root, nil
}

func (r *redactor) of(resource event.Resource) *tree {
	switch {
	case r == nil:
		return nil
	case isSecret(resource):
		return r.secrets
	}
	return r.paths
}

// redact returns body without its secret values: body itself where there are none. hidden are the parts of the object in
// which a value was made to look like any other. The error says what is wrong with the body and quotes nothing of it;
// then nothing of the body may be shown.
func (r *redactor) redact(body []byte, t *tree) (redacted []byte, hidden parts, err error) {
	w := redaction{redactor: r, b: body}
	if err := w.object(t); err != nil {
		return nil, 0, err
	}
	if w.copyAt > 0 && (len(w.edits) > 0 || w.again || r.inCopy(body[w.copyAt:w.copyEnd], t)) {
		w = redaction{redactor: r, b: body, withCopy: true}
		if err := w.object(t); err != nil {
			return nil, 0, err
		}
	}
	return w.edits.apply(body), w.hidden, nil
}

// inCopy says that the annotation with kubectl's copy of the object may hold something to be redacted, also where the
// object itself has lost it meanwhile.
func (r *redactor) inCopy(quoted []byte, t *tree) bool {
	if quoted[0] != '"' {
		return string(quoted) != "null"
	}
	w := redaction{redactor: r, b: rawjson.Text(quoted)}
	return w.object(t) != nil || len(w.edits) > 0 || w.again
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
	b        []byte
	withCopy bool // kubectl's copy of the object is redacted too

	edits           edits
	part            parts // of the top-level member being walked
	hidden          parts
	again           bool // a value was found that was redacted before
	copyAt, copyEnd int  // of kubectl's copy
	duplicate       int  // where a name occurs for the second time in one object
}

func (w *redaction) object(t *tree) error {
	start := rawjson.SkipSpace(w.b, 0)
	if start >= len(w.b) || w.b[start] != '{' {
		return malformed(rawjson.Fail(start))
	}
	end := w.walk(start, t, 0)
	if w.duplicate > 0 {
		return &malformedError{"a name occurs twice in one object, the second time", w.duplicate}
	}
	return closed(w.b, end)
}

// walk redacts what the tree says of the value at i and returns the index behind it.
func (w *redaction) walk(i int, t *tree, depth int) int {
	switch {
	case t == nil || i >= len(w.b) || depth > rawjson.Deepest:
		return rawjson.SkipValue(w.b, i, depth)
	case t.ends, t.special && w.withCopy:
		return w.conceal(i, depth)
	case t.special:
		end := rawjson.SkipValue(w.b, i, depth)
		w.copyAt, w.copyEnd = i, end
		return end
	case w.b[i] == '{':
		return w.members(i, t, depth)
	case w.b[i] == '[' && t.element != nil:
		return w.elements(i, t.element, depth)
	}
	return rawjson.SkipValue(w.b, i, depth)
}

func (w *redaction) members(i int, t *tree, depth int) int {
	var names names
	out := remover{edits: &w.edits}
	m := rawjson.Enter(w.b, i)
	for m.Next() {
		if names.twice(m.Key) {
			w.duplicate = m.Start
			return rawjson.Fail(m.Start)
		}
		if depth == 0 {
			w.part = partOf(m.Key)
		}
		next := t.member(m.Key)
		if w.drops(next) {
			if m.I = rawjson.SkipValue(w.b, m.I, depth+1); m.I >= 0 {
				out.remove(m.Comma, m.Start, m.I)
				w.hidden |= w.part
			}
			continue
		}
		out.keep(m.Comma)
		m.I = w.walk(m.I, next, depth+1)
	}
	return m.I
}

func (w *redaction) elements(i int, t *tree, depth int) int {
	out := remover{edits: &w.edits}
	e := rawjson.EnterArray(w.b, i)
	for e.Next() {
		if w.drops(t) {
			if e.I = rawjson.SkipValue(w.b, e.I, depth+1); e.I >= 0 {
				out.remove(e.Comma, e.Start, e.I)
				w.hidden |= w.part
			}
			continue
		}
		out.keep(e.Comma)
		e.I = w.walk(e.I, t, depth+1)
	}
	return e.I
}

// drops says that the value with this tree is left out.
func (w *redaction) drops(t *tree) bool {
	return w.mode == Drop && t != nil && (t.ends || t.special && w.withCopy)
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
			m.I = w.conceal(m.I, depth+1)
		}
		return m.I
	case '[':
		e := rawjson.EnterArray(w.b, i)
		for e.Next() {
			e.I = w.conceal(e.I, depth+1)
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
	switch {
	case string(value) == "null": // tells nothing
	case w.mode == HMAC && isHash(value), string(value) == masked && w.mode != HMAC:
		w.again = true
		if w.mode != HMAC {
			w.hidden |= w.part
		}
	case w.mode == HMAC:
		w.edits = append(w.edits, edit{start, end, w.hash(value)})
	default:
		w.edits = append(w.edits, edit{start, end, []byte(masked)})
		w.hidden |= w.part
	}
}

// hash returns the keyed hash of a scalar as a JSON string: that of the text of a string, so that escapes make no
// difference, and of any other scalar as it is spelled.
func (w *redaction) hash(value []byte) []byte {
	if value[0] == '"' {
		value = rawjson.Text(value)
	}
	h := w.hashes.Get().(hash.Hash)
	defer w.hashes.Put(h)
	h.Reset()
	h.Write(value)
	var sum [sha256.Size]byte
	out := append(make([]byte, 0, len(hashPrefix)+2*hashLength+2), `"`+hashPrefix...)
	return append(hex.AppendEncode(out, h.Sum(sum[:0])[:hashLength]), '"')
}

// isHash says that a value was redacted before: what is stored of an object is read again and must not be hashed twice.
func isHash(quoted []byte) bool {
	digits, ok := bytes.CutPrefix(quoted, []byte(`"`+hashPrefix))
	if !ok || len(digits) != 2*hashLength+1 {
		return false
	}
	_, err := hex.Decode(make([]byte, hashLength), digits[:2*hashLength])
	return err == nil && digits[2*hashLength] == '"'
}

// names notices when a name occurs twice in one object: then there is no telling which value counts.
type names struct {
	few  [16][]byte
	n    int
	many map[string]bool
}

func (s *names) twice(name []byte) bool {
	if s.many != nil {
		if s.many[string(name)] {
			return true
		}
		s.many[string(name)] = true
		return false
	}
	for _, known := range s.few[:s.n] {
		if bytes.Equal(known, name) {
			return true
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return false
	}
	s.many = map[string]bool{string(name): true}
	for _, known := range s.few {
		s.many[string(known)] = true
	}
	return false
}
