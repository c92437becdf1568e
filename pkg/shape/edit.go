package shape

// edit replaces the bytes in [start, end).
type edit struct {
	start, end int
	text       []byte // nil removes the bytes
}

// edits are in ascending order and do not overlap.
type edits []edit

// applyTo returns a copy of b with the edits applied; b itself if there are none.
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

// remover removes members of an object or elements of an array, with one comma each, so that the result is valid JSON.
// removeItem or keepItem must be called for every item, in order.
type remover struct {
	edits *edits
	kept  bool
}

// removeItem removes the item from start to end; comma is the index of the comma before it, -1 for the first item.
func (r *remover) removeItem(comma, start, end int) {
	if comma >= 0 {
		start = comma
	}
	*r.edits = append(*r.edits, edit{start: start, end: end})
}

// keepItem keeps an item. It must be called before edits inside the item are added.
func (r *remover) keepItem(comma int) {
	if !r.kept && comma >= 0 { // all preceding items were removed
		*r.edits = append(*r.edits, edit{start: comma, end: comma + 1})
	}
	r.kept = true
}
