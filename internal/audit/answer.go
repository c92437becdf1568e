package audit

// answer is what a response holds, in whatever form the client asked for it.
type answer struct {
	kind  string
	spec  bool // spec.finalizers is not empty, which is where namespaces have them
	of    Object
	items *[]Object
}

// scanAnswer reads the identities of what the request was answered with: an object, a list of them, or a Table of one.
func (e *Event) scanAnswer(b []byte, i int) int {
	a := answer{items: &e.Items}
	end := a.scan(b, i)
	e.Answer = a.object()
	return end
}

func (a *answer) object() Object {
	o := a.of
	if a.kind == "Namespace" {
		o.Held = o.Held || a.spec
	}
	if a.kind == "Status" { // its metadata is that of a list
		o = Object{}
	}
	return o
}

func (a *answer) scan(b []byte, i int) int {
	return members(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "kind":
			a.kind = text(b, i)
		case "metadata":
			return scanMetadata(b, i, &a.of)
		case "spec":
			return members(b, i, func(key []byte, i int) int {
				if string(key) == "finalizers" {
					a.spec = filled(b, i)
				}
				return pass
			})
		case "rows":
			return elements(b, i, func(i int) int { return a.scanRow(b, i) })
		case "items":
			if a.items != nil {
				return elements(b, i, func(i int) int { return scanItem(b, i, a.items) })
			}
		}
		return pass
	})
}

// scanRow reads the object that a row of a Table speaks of. A write is answered with one row.
func (a *answer) scanRow(b []byte, i int) int {
	return members(b, i, func(key []byte, i int) int {
		if string(key) != "object" || b[i] != '{' {
			return pass
		}
		row := answer{}
		end := row.scan(b, i)
		if row.of.UID != "" {
			a.of = row.object()
		}
		return end
	})
}

func scanItem(b []byte, i int, items *[]Object) int {
	item := answer{}
	end := item.scan(b, i)
	if o := item.object(); o.UID != "" {
		*items = append(*items, o)
	}
	return end
}

func scanMetadata(b []byte, i int, o *Object) int {
	return members(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "uid":
			o.UID = text(b, i)
		case "resourceVersion":
			o.ResourceVersion = text(b, i)
		case "deletionTimestamp":
			o.Deleting = b[i] == '"'
		case "deletionGracePeriodSeconds":
			o.Grace = number(b, i) != 0
		case "finalizers":
			o.Held = filled(b, i)
		}
		return pass
	})
}
