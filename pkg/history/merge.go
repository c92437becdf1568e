package history

import (
	"container/heap"
	"errors"
	"io"
)

// merger merges sources by object.
type merger struct {
	sources []source // that were not asked yet
	heads   heads
	started bool
}

// head is the next row of a source.
type head struct {
	row  *Row
	from source
}

// heads is a heap by row.
type heads []head

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return h[i].row.Compare(&h[j].row.Facts) < 0 }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(head)) }
func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func (m *merger) next() (*Row, error) {
	if !m.started {
		m.started = true
		for _, s := range m.sources {
			row, err := s.next()
			if errors.Is(err, io.EOF) {
				continue
			}
			if err != nil {
				return nil, err
			}
			m.heads = append(m.heads, head{row, s})
		}
		heap.Init(&m.heads)
	} else if len(m.heads) > 0 { // the row that was returned last is valid until now
		row, err := m.heads[0].from.next()
		switch {
		case errors.Is(err, io.EOF):
			heap.Pop(&m.heads)
		case err != nil:
			return nil, err
		default:
			m.heads[0].row = row
			heap.Fix(&m.heads, 0)
		}
	}
	if len(m.heads) == 0 {
		return nil, io.EOF
	}
	return m.heads[0].row, nil
}

// fold returns what exists behind the last row of a source, as rows of type Alive: the newest state of each object, with its
// author, and before the objects the snapshot.begin of each snapshot that has not ended.
//
// A snapshot that ends says that an object of its scope which it lacks, and which no row was about since it began, was
// deleted while nothing watched.
type fold struct {
	from    source
	pending *Row // the row that ended the last object
	newest  Row  // of the current object, or the begin of the snapshot that is open; valid if has
	has     bool
	key     Key   // of the current object, or of the control records of a resource or of a namespace
	whole   int64 // sequence of the newest begin of a snapshot of the resource that has ended
	partial int64 // and of one of the namespace
	result  Row
}

func (f *fold) next() (*Row, error) {
	for {
		row, err := f.pending, error(nil)
		if f.pending = nil; row == nil {
			row, err = f.from.next()
		}
		switch {
		case errors.Is(err, io.EOF) && f.has:
			row = nil
		case err != nil:
			return nil, err
		case row.Key() == f.key:
			f.add(row)
			continue
		}
		exists := f.exists()
		if f.has = false; exists {
			f.result = f.newest
			f.result.Type, f.result.Changed = Alive, nil
		}
		if row != nil {
			f.enter(row.Key())
			f.pending = row
		}
		if exists {
			return &f.result, nil
		}
	}
}

// exists reports whether newest is of an object that exists, or of a snapshot that is open.
func (f *fold) exists() bool {
	return f.has && f.newest.Type != "deleted" && (f.key.Name == "" || f.newest.Sequence > max(f.whole, f.partial))
}

// enter begins with the rows of a key.
func (f *fold) enter(key Key) {
	if key.Cluster != f.key.Cluster || key.Group != f.key.Group || key.Resource != f.key.Resource {
		f.whole, f.partial = 0, 0
	} else if key.Namespace != f.key.Namespace {
		f.partial = 0
	}
	f.key = key
}

// add adds a row of the current key.
func (f *fold) add(row *Row) {
	switch {
	case row.Type == "snapshot.begin", row.IsState():
		f.newest, f.has = *row, true
	case row.Type == "snapshot.end" && f.has:
		f.has = false
		if f.key.Namespace == "" {
			f.whole = f.newest.Sequence
		} else {
			f.partial = f.newest.Sequence
		}
	case row.Type == "attributed" && f.has && row.UID == f.newest.UID && row.ResourceVersion == f.newest.ResourceVersion:
		f.newest.User, f.newest.Attribution = row.User, row.Attribution
	}
}

// objects leaves out the snapshots that are open.
type objects struct{ from source }

func (o *objects) next() (*Row, error) {
	for {
		if row, err := o.from.next(); err != nil || row.Name != "" {
			return row, err
		}
	}
}
