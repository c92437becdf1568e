package history

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
)

// Compact makes one merge, if there is one to make, and reports whether it did. idle says that nothing was appended for a
// while: then few files are merged too. Readers see the files before it or after it.
func (w *Writer) Compact(idle bool) (bool, error) {
	w.mu.Lock()
	err := w.begin()
	files := w.manifest.Files
	from, to, large := w.pickMerge(files, idle)
	w.mu.Unlock()
	if err != nil || from == to {
		return false, err
	}
	merged, err := w.mergeFiles(files, from, to, large)
	if err != nil {
		return false, fmt.Errorf("merge files of the history: %w", err)
	}
	return true, w.replaceFiles(files[from:to], merged)
}

// pickMerge returns which files are merged next, if any: the small ones behind the last large file become a large one when
// they have enough rows, or when their day is over; before that, many of a level become one of the next.
func (w *Writer) pickMerge(files []File, idle bool) (from, to int, large bool) {
	for from = len(files); from > 0 && !files[from-1].Large; {
		from--
	}
	var rows, alive int64
	if from > 0 {
		alive = files[from-1].Alive
	}
	for to = from; to < len(files) && files[to].day() == files[from].day(); to++ {
		rows += files[to].Rows
	}
	over := to < len(files) && files[to].day() != files[from].day()
	switch {
	case to == from:
		return 0, 0, false
	case to-from <= w.fanIn+w.fanIn/2 && (over || rows >= max(w.largeRows, 2*alive)):
		return from, to, true
	case over || rows >= max(w.largeRows, 2*alive): // too many to merge at once
		return to - w.fanIn, to, false
	}
	level, most := -1, 0
	for n := 1; n <= to-from; n++ {
		if f := files[to-n]; f.Level != level {
			if level, most, to, n = f.Level, w.fanIn, to-n+1, 0; idle && level == 0 {
				most = 2
			}
		} else if n == w.fanIn || n >= most && (n == to-from || files[to-n-1].Level != level) {
			return to - n, to, false
		}
	}
	return 0, 0, false
}

// mergeFiles writes the rows of files[from:to] to a new one.
func (w *Writer) mergeFiles(files []File, from, to int, large bool) (f File, err error) {
	sources := &merger{}
	for i, input := range files[from:to] {
		c, file, err := w.openCursor(input, plan{all: true})
		if err != nil {
			return f, err
		}
		defer file.Close()
		if sources.sources = append(sources.sources, c); i == 0 || input.Level >= f.Level {
			f.Level = input.Level + 1
		}
	}
	if f.Large = large; large && from > 0 {
		c, file, err := w.openCursor(files[from-1], plan{state: true, alive: true})
		if err != nil {
			return f, err
		}
		defer file.Close()
		sources.sources = append(sources.sources, &fold{from: c})
	}
	f.Path = newPath(files[from].day(), f.Level, files[from].FirstSequence)
	err = w.writeSorted(&f, sources, func() error { return nil })
	return f, err
}

func (w *Writer) openCursor(f File, p plan) (*cursor, blob, error) {
	file, err := w.store.open(f.Path, f.Bytes)
	if err != nil {
		return nil, nil, err
	}
	return newCursor(file, f.Bytes, p), file, nil
}

// replaceFiles commits new files in the place of old ones, which stand behind each other, and removes these.
func (w *Writer) replaceFiles(old []File, by ...File) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	files := slices.Clone(w.manifest.Files)
	at := slices.IndexFunc(files, func(f File) bool { return f.Path == old[0].Path })
	if err := w.commit(slices.Replace(files, at, at+len(old), by...), w.manifest.Read); err != nil {
		return err
	}
	for _, f := range old {
		w.replaced = append(w.replaced, replaced{f.Path, time.Now()})
	}
	return w.removeReplaced(false)
}

// replaced is a file that a commit has replaced.
type replaced struct {
	name string
	at   time.Time
}

// removeReplaced removes files that were replaced long enough ago. The caller holds mu.
func (w *Writer) removeReplaced(all bool) (failed error) {
	w.replaced = slices.DeleteFunc(w.replaced, func(r replaced) bool {
		if !all && time.Since(r.at) < w.store.grace() {
			return false
		}
		err := w.store.remove(r.name)
		failed = errors.Join(failed, err)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
	return failed
}

// Retain removes the oldest files: those with nothing that is newer than cutoff, and those beyond maxBytes; a zero bound is
// none. What stays begins with a large file, so that the state at each time from then on can be told. Rows that are not in a
// large file yet stay, and so does the last large file.
func (w *Writer) Retain(cutoff time.Time, maxBytes int64) error {
	w.mu.Lock()
	err := cmp.Or(w.begin(), w.removeReplaced(false))
	files := w.manifest.Files
	w.mu.Unlock()
	if err != nil {
		return err
	}
	var rest, kept int64 // bytes of what follows, and of what stays
	for _, f := range files {
		rest += f.Bytes
	}
	kept = rest
	remove, expired := 0, !cutoff.IsZero()
	for i, f := range files {
		if f.Large && (expired || maxBytes > 0 && kept > maxBytes) {
			remove, kept = i, rest
		}
		expired = expired && f.To.Before(cutoff)
		rest -= f.Bytes
	}
	if remove == 0 {
		return nil
	}
	return w.replaceFiles(files[:remove])
}

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
