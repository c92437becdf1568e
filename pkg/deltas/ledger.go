package deltas

// ledger numbers deltas on entry and knows the low watermark: the resourceVersion up to which everything that entered
// is done. Numbers are consecutive. It is not safe for concurrent use; the Queue's order lock guards it.
type ledger struct {
	first    uint64  // number of entries[0]
	entries  []entry // from the oldest that is not done
	position string  // resourceVersion of the low watermark
}

type entry struct {
	rv   string // "" does not move the position: a list's items have no place in history, only the list has
	done bool
}

// enter takes the next number. done is true for what has nothing to wait for: bookmarks, filtered objects, list markers.
func (l *ledger) enter(rv string, done bool) uint64 {
	l.entries = append(l.entries, entry{rv, done})
	number := l.first + uint64(len(l.entries)) - 1
	l.advance()
	return number
}

// finish marks a number done. Finishing one twice is allowed: one item may stand in two deltas.
func (l *ledger) finish(number uint64) {
	if number < l.first {
		return
	}
	l.entries[number-l.first].done = true
	l.advance()
}

// idle says that nothing is waiting.
func (l *ledger) idle() bool { return len(l.entries) == 0 }

func (l *ledger) advance() {
	n := 0
	for n < len(l.entries) && l.entries[n].done {
		if rv := l.entries[n].rv; rv != "" {
			l.position = rv
		}
		n++
	}
	l.first += uint64(n)
	l.entries = l.entries[n:]
	if len(l.entries) == 0 {
		l.entries = nil
	}
}
