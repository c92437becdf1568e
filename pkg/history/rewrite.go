package history

import (
	"cmp"
	"errors"
	"fmt"
	"io"
)

// Rewrite passes each row to change, which reports whether it has changed what the row has beside its key, its sequence and
// its times, and returns how many it has. A file with such a row is written again, and the one before is removed, also from
// under a reader in a bucket. Each file is a commit, so that a call after an error continues.
func (w *Writer) Rewrite(change func(*Row) bool) (rows int64, err error) {
	m, _ := w.Manifest()
	for _, old := range m.Files {
		changed, err := w.rewriteFile(old, change)
		if rows += changed; err != nil {
			return rows, fmt.Errorf("write %s again: %w", old.Path, err)
		}
	}
	return rows, nil
}

// errUnchanged ends the writing of a file that would be the same.
var errUnchanged = errors.New("no row is changed")

func (w *Writer) rewriteFile(old File, change func(*Row) bool) (int64, error) {
	c, file, err := w.openCursor(old, plan{all: true})
	if err != nil {
		return 0, err
	}
	defer file.Close()
	now := File{Path: newPath(old.day(), old.Level, old.FirstSequence), Level: old.Level, Large: old.Large}
	source := &changer{from: c, change: change}
	err = w.writeSorted(&now, source, func() error {
		if source.changed == 0 {
			return errUnchanged
		}
		return nil
	})
	if errors.Is(err, errUnchanged) {
		return 0, nil
	}
	if err == nil {
		err = w.replaceFiles([]File{old}, now)
	}
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		err = w.removeReplaced(true)
	}
	return source.changed, err
}

// writeSorted writes the rows of a source to a file, unless check, which is called behind the last one, returns an error.
func (w *Writer) writeSorted(f *File, from source, check func() error) error {
	return w.store.write(f.Path, func(out io.Writer) error {
		return cmp.Or(newRowWriter(out, f).writeRecords(from), check())
	})
}

// changer passes rows on after a change of some.
type changer struct {
	from    source
	change  func(*Row) bool
	changed int64
}

func (c *changer) next() (record, error) {
	r, err := c.from.next()
	if err != nil {
		return r, err
	}
	var row Row
	if err := rowSchema.Reconstruct(&row, r.cells); err != nil {
		return r, err
	}
	if c.change(&row) {
		c.changed++
		r.cells = rowSchema.Deconstruct(nil, &row)
	}
	return r, nil
}
