package audit

import "bytes"

// responseScan collects the facts of a response body: an object, a list, a Table or a Status. What they mean is known at the
// end only, because the members of a body may have any order.
type responseScan struct {
	kind, apiVersion []byte // alias the text of the event
	specFinalizers   bool   // spec.finalizers is not empty; namespaces have theirs there
	of               Object
	rows, items      int // index of the member; 0: none
}

// setAnswer sets the identities in a response body. It returns a negative index if the body is malformed.
func (e *Event) setAnswer(b []byte, a *responseScan) int {
	switch {
	case a.is("meta.k8s.io/v1", "Table") && e.Group != metaGroup:
		return e.scanTable(b, a.rows)
	case e.Verb == "deletecollection" && (e.isOwnGroup(a) || a.is("meta.k8s.io/v1", "PartialObjectMetadataList")):
		return scanElements(b, a.items, func(i int) int {
			var item responseScan
			end := item.scanBody(b, i)
			if o := item.object(); o.UID != "" {
				e.Items = append(e.Items, o)
			}
			return end
		})
	case e.isAnswered(a):
		e.Answer = a.object()
	}
	return 0
}

// isAnswered reports whether a body is the object that the request wrote, in a form in which API servers return it. Any
// other has the identity of something else, such as a Status, or one that the client chose.
func (e *Event) isAnswered(a *responseScan) bool {
	return e.isOwnGroup(a) || a.is("meta.k8s.io/v1", "PartialObjectMetadata") ||
		e.Subresource == "scale" && a.is("autoscaling/v1", "Scale")
}

// isOwnGroup reports whether a body is an object of the group that the request names.
func (e *Event) isOwnGroup(a *responseScan) bool {
	return string(a.group()) == e.Group && !a.is("v1", "Status")
}

const metaGroup = "meta.k8s.io"

func (a *responseScan) is(apiVersion, kind string) bool {
	return string(a.apiVersion) == apiVersion && string(a.kind) == kind
}

func (a *responseScan) group() []byte {
	group, _, named := bytes.Cut(a.apiVersion, []byte("/"))
	if !named {
		return nil
	}
	return group
}

func (a *responseScan) object() Object {
	o := a.of
	if a.is("v1", "Namespace") {
		o.Held = o.Held || a.specFinalizers
	}
	return o
}

// scanTable reads the object in the only row of the Table that answers a write, or one in each row if a collection was
// deleted.
func (e *Event) scanTable(b []byte, rows int) int {
	n := 0
	var objects []Object
	end := scanElements(b, rows, func(i int) int {
		n++
		return scanMembers(b, i, func(key []byte, i int) int {
			if string(key) != "object" {
				return skipValue
			}
			var row responseScan
			end := row.scanBody(b, i)
			if o := row.object(); e.isAnswered(&row) && o.UID != "" {
				objects = append(objects, o)
			}
			return end
		})
	})
	switch {
	case e.Verb == "deletecollection":
		e.Items = objects
	case n == 1 && len(objects) == 1:
		e.Answer = objects[0]
	}
	return end
}

func (a *responseScan) scanBody(b []byte, i int) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "kind":
			a.kind, i = textAt(b, i)
			return i
		case "apiVersion":
			a.apiVersion, i = textAt(b, i)
			return i
		case "metadata":
			return scanMetadata(b, i, &a.of)
		case "spec":
			return scanMembers(b, i, func(key []byte, i int) int {
				if string(key) == "finalizers" {
					a.specFinalizers = hasElements(b, i)
				}
				return skipValue
			})
		case "rows":
			a.rows = i
		case "items":
			a.items = i
		}
		return skipValue
	})
}

func scanMetadata(b []byte, i int, o *Object) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "uid":
			return readString(b, i, &o.UID)
		case "resourceVersion":
			return readString(b, i, &o.ResourceVersion)
		case "deletionTimestamp":
			o.Deleting = b[i] == '"'
		case "deletionGracePeriodSeconds":
			o.Grace = intAt(b, i) != 0
		case "finalizers":
			o.Held = hasElements(b, i)
		}
		return skipValue
	})
}
