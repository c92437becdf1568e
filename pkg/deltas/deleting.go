package deltas

// deleting remembers, by key, the number of a delete that is queued. DeltaFIFO merges a delete that directly follows
// another one of the same object and drops one of the two; the number of the dropped one would hold the watermark for
// ever. A correct API server never sends that; some aggregated ones do. The Queue's order lock guards it.
type deleting map[string]uint64

func (d deleting) queued(key string) bool { _, ok := d[key]; return ok }

func (d deleting) mark(key string, number uint64) { d[key] = number }

// exists notes that the object came back after the queued delete, so that a further delete is a new one.
func (d deleting) exists(key string) { delete(d, key) }

// popped notes that the delta with this number left the queue.
func (d deleting) popped(key string, number uint64) {
	if n, ok := d[key]; ok && n == number {
		delete(d, key)
	}
}
