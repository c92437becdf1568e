package audit

// responseScan collects the facts of a response body: an object, a list, a Table or a Status.
type responseScan struct {
	kind           string
	specFinalizers bool // spec.finalizers is not empty; namespaces have theirs there
	of             Object
	items          *[]Object
}

// scanResponse reads the identities in the response body into e.
func (e *Event) scanResponse(b []byte, i int) int {
	a := responseScan{items: &e.Items}
	end := a.scanBody(b, i)
	e.Answer = a.object()
	return end
}

func (a *responseScan) object() Object {
	o := a.of
	if a.kind == "Namespace" {
		o.Held = o.Held || a.specFinalizers
	}
	if a.kind == "Status" { // its metadata is of no object
		o = Object{}
	}
	return o
}

func (a *responseScan) scanBody(b []byte, i int) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "kind":
			a.kind = stringAt(b, i)
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
			return scanElements(b, i, func(i int) int { return a.scanRow(b, i) })
		case "items":
			if a.items != nil {
				return scanElements(b, i, func(i int) int { return scanItem(b, i, a.items) })
			}
		}
		return skipValue
	})
}

// scanRow reads the object of a row of a Table. The Table that answers a write has one row.
func (a *responseScan) scanRow(b []byte, i int) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		if string(key) != "object" || b[i] != '{' {
			return skipValue
		}
		row := responseScan{}
		end := row.scanBody(b, i)
		if row.of.UID != "" {
			a.of = row.object()
		}
		return end
	})
}

func scanItem(b []byte, i int, items *[]Object) int {
	item := responseScan{}
	end := item.scanBody(b, i)
	if o := item.object(); o.UID != "" {
		*items = append(*items, o)
	}
	return end
}

func scanMetadata(b []byte, i int, o *Object) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "uid":
			o.UID = stringAt(b, i)
		case "resourceVersion":
			o.ResourceVersion = stringAt(b, i)
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
