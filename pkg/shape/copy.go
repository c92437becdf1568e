package shape

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// copyKind describes whether an annotation holds a copy of an object, which may contain secret values.
type copyKind int

const (
	noCopy      copyKind = iota
	wholeCopy            // a copy of the object as it was applied, including its values
	derivedCopy          // a credential, or data derived from an object that cannot be redacted like one
)

// copyAnnotations lists annotations that hold copies. Any annotation with "last-applied" in its name holds one too.
var copyAnnotations = map[string]copyKind{
	"kubectl.kubernetes.io/last-applied-configuration": wholeCopy,
	"kapp.k14s.io/original":                            wholeCopy,
	"kapp.k14s.io/original-diff":                       derivedCopy,
	"kapp.k14s.io/original-diff-full":                  derivedCopy,
	"kapp.k14s.io/original-diff-md5":                   derivedCopy,
	"objectset.rio.cattle.io/applied":                  wholeCopy, // gzip in base64, or JSON
	"openshift.io/token-secret.value":                  derivedCopy,
}

// copyKindOf returns what the annotation with this name holds.
func copyKindOf[T string | []byte](name T) copyKind {
	if kind, ok := copyAnnotations[string(name)]; ok {
		return kind
	}
	lower := strings.ToLower(string(name))
	if strings.Contains(lower, "last-applied") || strings.Contains(lower, "lastapplied") {
		return wholeCopy
	}
	return noCopy
}

// maxCopyDepth bounds how many levels of copies within copies are inspected.
const maxCopyDepth = 3

// annotationsTree applies to every object except Secrets: only copies in its annotations need to be inspected.
var annotationsTree = &path.Tree{Names: map[string]*path.Tree{
	"metadata": {Names: map[string]*path.Tree{"annotations": {Copies: true}}},
}}

// annotationTree returns the tree for the value of an annotation; next is the tree according to the paths. An annotation
// with a copy is redacted completely, unless the copy is of the same kind as the object and holds nothing to redact. A copy
// that cannot be parsed, for example because it is compressed, is redacted.
func (w *redactionPass) annotationTree(name []byte, i int, next *path.Tree) *path.Tree {
	kind := copyKindOf(name)
	if next != redactAll && w.isCopyOfObject(name, i, kind) {
		return redactAll
	}
	if kind == noCopy && (next == nil || !next.Ends) {
		w.recordKept(i)
	}
	if kind == noCopy || next == redactAll {
		return next
	}
	if kind == wholeCopy && !w.hideCopies {
		if end := w.skipValue(i, 0); end < 0 || w.isHarmlessCopy(w.b[i:end]) {
			w.keptCopies = true
			return next
		}
	}
	return redactAll
}

// isCopyOfObject reports whether the annotation at i is redacted because it holds a value that the object has, or had when
// the annotation was last judged. It remembers that.
func (w *redactionPass) isCopyOfObject(name []byte, i int, kind copyKind) bool {
	found := w.copies[i] || kind == wholeCopy && w.hideCopies
	if w.remembered == nil || i >= len(w.b) || w.b[i] != '"' || kind != wholeCopy && !holdsContainer(w.b[i:]) {
		return found
	}
	end := rawjson.SkipString(w.b, i)
	if end < 0 || string(w.b[i:end]) == masked || isHash(w.b[i:end]) || !found && !w.remembered.hides(name, w.b[i:end]) {
		return found
	}
	w.remembered.record(name, w.b[i:end])
	return true
}

// isHarmlessCopy reports whether a copy holds nothing that the rule redacts.
func (w *redactionPass) isHarmlessCopy(value []byte) bool {
	if value[0] != '"' || w.depth == maxCopyDepth {
		return string(value) == "null"
	}
	inner := redactionPass{
		redactor: w.redactor, b: rawjson.Unquote(value), kind: w.kind, trusted: w.trusted, secret: w.secret, depth: w.depth + 1,
	}
	return inner.redactObject(w.others) == nil && len(inner.findCopies()) == 0 && len(inner.edits) == 0 && !inner.foundRedacted &&
		inner.declaredKind == w.kind && w.kind != "" && w.kind != "Secret"
}

// recordKept records that the annotation at i is shown, if it may hold values of the object.
func (w *redactionPass) recordKept(i int) {
	if w.trusted || i >= len(w.b) || w.copies != nil || w.hideCopies || !holdsContainer(w.b[i:]) {
		return
	}
	if end := rawjson.SkipString(w.b, i); end >= 0 {
		w.kept = append(w.kept, span{i, end})
	}
}

// secretPaths are the paths of the values of a Secret.
var secretPaths = []path.Path{path.OfNames("data"), path.OfNames("stringData")}

// findCopies returns the starts of annotations that hold values which the rule redacts.
func (w *redactionPass) findCopies() map[int]bool {
	if len(w.kept) == 0 {
		return nil
	}
	search := copySearch{tails: w.tails}
	if w.secret {
		search.tails = slices.Concat(w.tails, secretPaths)
	}
	for _, v := range w.values {
		search.addValues(w.b, v.start, 0, w.secret)
	}
	var copies map[int]bool
	for _, a := range w.kept {
		if search.isCopied(w.b[a.start:a.end], w.depth) {
			if copies == nil {
				copies = map[int]bool{}
			}
			copies[a.start] = true
		}
	}
	return copies
}
