package history

import (
	"errors"
	"io"
	"slices"
)

// merger merges sources by object.
type merger struct {
	sources []source // that were not asked yet
	heads   []head   // in order
}

// head is the next row of a source.
type head struct {
	record
	from source
}

func (m *merger) next() (record, error) {
	if len(m.heads) > 0 { // the row that was returned last is valid until now
		last := m.heads[0].from
		m.heads = m.heads[1:]
		if err := m.add(last); err != nil {
			return record{}, err
		}
	}
	for ; len(m.sources) > 0; m.sources = m.sources[1:] {
		if err := m.add(m.sources[0]); err != nil {
			return record{}, err
		}
	}
	if len(m.heads) == 0 {
		return record{}, io.EOF
	}
	return m.heads[0].record, nil
}

// add adds the next row of a source, if it has one.
func (m *merger) add(s source) error {
	row, err := s.next()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		at, _ := slices.BinarySearchFunc(m.heads, row, func(h head, row record) int { return h.compare(row) })
		m.heads = slices.Insert(m.heads, at, head{row, s})
	}
	return err
}

// fold returns what exists behind the last row of a source, as rows of type Alive: the newest state of each object, with its
// author, and before the objects the snapshot.begin of each snapshot that has not ended.
//
// A snapshot that ends says that an object of its scope which it lacks, and which no row was about since it began, was
// deleted while nothing watched.
type fold struct {
	from    source
	pending record // that ended the last object
	newest  record // of the current object, or the begin of the snapshot that is open; if there is one
	author  record // of newest
	key     Key    // of the current object, or of the control records of a resource or of a namespace
	whole   int64  // sequence of the newest begin of a snapshot of the resource that has ended
	partial int64  // and of one of the namespace
}

func (f *fold) next() (record, error) {
	for {
		row, err := f.pending, error(nil)
		if f.pending = (record{}); row.cells == nil {
			row, err = f.from.next()
		}
		switch {
		case errors.Is(err, io.EOF) && f.newest.cells != nil:
			row = record{}
		case err != nil:
			return record{}, err
		case row.key() == f.key:
			f.add(row)
			continue
		}
		var result record
		if f.exists() {
			result = f.newest.asAlive(f.author)
		}
		f.newest, f.author = record{}, record{}
		if row.cells != nil {
			f.enter(row.key())
			f.pending = row
		}
		if result.cells != nil {
			return result, nil
		}
	}
}

// exists reports whether newest is of an object that exists, or of a snapshot that is open.
func (f *fold) exists() bool {
	return f.newest.cells != nil && !isEnd(f.newest.text(columnType)) &&
		(f.key.Name == "" || f.newest.sequence() > max(f.whole, f.partial))
}

// enter begins with the rows of a key.
func (f *fold) enter(key Key) {
	if key.Cluster != f.key.Cluster || key.Group != f.key.Group || key.Resource != f.key.Resource {
		f.whole, f.partial = 0, 0
	} else if key.Namespace != f.key.Namespace {
		f.partial = 0
	}
	f.key = key.clone()
}

// add adds a row of the current key.
func (f *fold) add(row record) {
	switch kind := row.text(columnType); {
	case kind == "snapshot.begin", isState(kind):
		f.newest, f.author = record{row.cells.Clone()}, record{}
	case f.newest.cells == nil:
	case kind == "snapshot.end":
		if f.key.Namespace == "" {
			f.whole = f.newest.sequence()
		} else {
			f.partial = f.newest.sequence()
		}
		f.newest = record{}
	case kind == "attributed" && row.text(columnUID) == f.newest.text(columnUID) &&
		row.text(columnResourceVersion) == f.newest.text(columnResourceVersion):
		f.author = record{row.cells.Clone()}
	}
}

// objects leaves out the snapshots that are open.
type objects struct{ from source }

func (o *objects) next() (record, error) {
	for {
		if row, err := o.from.next(); err != nil || row.text(columnName) != "" {
			return row, err
		}
	}
}
