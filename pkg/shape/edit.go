package shape

// edit replaces the bytes from start to end.
type edit struct {
	start, end int
	text       []byte // nil removes
}

// edits are ascending and do not overlap.
type edits []edit

// applyTo returns b with the edits made; b itself where there are none.
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

// remover takes members out of an object, or elements out of an array, so that the rest is still one: with each goes one
// comma. Its methods are called in order, for every member.
type remover struct {
	edits *edits
	kept  bool
}

// removeItem takes out the member from start to end; comma is where the one before it stands, -1 for the first member.
func (r *remover) removeItem(comma, start, end int) {
	if comma >= 0 {
		start = comma
	}
	*r.edits = append(*r.edits, edit{start: start, end: end})
}

// keepItem keeps a member. It must be called before edits within the member are made.
func (r *remover) keepItem(comma int) {
	if !r.kept && comma >= 0 { // all before it are gone
		*r.edits = append(*r.edits, edit{start: comma, end: comma + 1})
	}
	r.kept = true
}
