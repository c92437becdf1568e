package shape

import (
	"regexp"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// copyKind says what an annotation of any object holds that is no business of its own.
type copyKind int

const (
	noCopy      copyKind = iota
	wholeCopy            // a copy of the object, as whoever applied it wrote it: its values included
	derivedCopy          // a credential, or something made of a whole object that cannot be shaped as one
)

// copyAnnotations are the annotations that hold copies, besides all whose names say "last applied".
var copyAnnotations = map[string]copyKind{
	"kubectl.kubernetes.io/last-applied-configuration": wholeCopy,
	"kapp.k14s.io/original":                            wholeCopy,
	"kapp.k14s.io/original-diff":                       derivedCopy,
	"kapp.k14s.io/original-diff-full":                  derivedCopy,
	"kapp.k14s.io/original-diff-md5":                   derivedCopy,
	"objectset.rio.cattle.io/applied":                  wholeCopy, // gzip in base64, where it is not JSON
	"openshift.io/token-secret.value":                  derivedCopy,
}

// copyKindOf says what the annotation of that name holds.
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

// maxCopyDepth is how many copies within copies are looked into.
const maxCopyDepth = 3

// annotationsTree is the tree of every object that is not a Secret: only its copies need a look.
var annotationsTree = &path.Tree{Names: map[string]*path.Tree{"metadata": {Names: map[string]*path.Tree{"annotations": {Copies: true}}}}}

// annotationTree is the tree of an annotation of which the paths say next: of one that holds a copy it says that all of it is
// redacted, unless the copy is one of the same kind of object in which there is nothing to redact. A copy that cannot be
// read, because it is packed or no JSON, is redacted.
func (w *redactionPass) annotationTree(name []byte, i int, next *path.Tree) *path.Tree {
	kind := copyKindOf(name)
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

// isHarmlessCopy says that a copy holds nothing that the rule redacts.
func (w *redactionPass) isHarmlessCopy(value []byte) bool {
	if value[0] != '"' || w.depth == maxCopyDepth {
		return string(value) == "null"
	}
	inner := redactionPass{redactor: w.redactor, b: rawjson.Unquote(value), kind: w.kind, trusted: w.trusted, depth: w.depth + 1}
	return inner.redactObject(w.others) == nil && len(inner.edits) == 0 && !inner.foundRedacted &&
		inner.declaredKind == w.kind && w.kind != "" && w.kind != "Secret"
}

var qualifiedName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
