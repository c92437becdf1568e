package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	err = w.addFile(f, func(path string) error { return w.writeMerged(path, sources, &f) })
	return f, err
}

func (w *Writer) openCursor(f File, p plan) (*cursor, *os.File, error) {
	file, err := os.Open(filepath.Join(w.dir, filepath.FromSlash(f.Path)))
	if err != nil {
		return nil, nil, err
	}
	return newCursor(file, p), file, nil
}

// writeMerged writes rows to a file and makes its content durable.
func (w *Writer) writeMerged(path string, from source, f *File) error {
	out, err := w.disk.create(path)
	if err != nil {
		return err
	}
	counted := &counter{diskFile: out}
	page := smallPage
	if f.Large {
		page = largePage
	}
	err = newRowWriter(counted, page, f).writeRecords(from)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(err, w.disk.remove(path))
	}
	f.Bytes = counted.bytes
	return nil
}

type counter struct {
	diskFile
	bytes int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.diskFile.Write(b)
	c.bytes += int64(n)
	return n, err
}

// replaceFiles commits new files in the place of old ones, which stand behind each other, and removes these.
func (w *Writer) replaceFiles(old []File, by ...File) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	files := slices.Clone(w.manifest.Files)
	at := slices.IndexFunc(files, func(f File) bool { return f.Path == old[0].Path })
	if err := w.commit(slices.Replace(files, at, at+len(old), by...)); err != nil {
		return err
	}
	var failed error
	for _, f := range old {
		path := filepath.Join(w.dir, filepath.FromSlash(f.Path))
		failed = errors.Join(failed, w.disk.remove(path))
		if others, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(others) == 0 {
			failed = errors.Join(failed, w.disk.remove(filepath.Dir(path)))
		}
	}
	return failed
}

// Retain removes the oldest files: those with nothing that is newer than cutoff, and those beyond maxBytes; a zero bound is
// none. What stays begins with a large file, so that the state at each time from then on can be told. Rows that are not in a
// large file yet stay, and so does the last large file.
func (w *Writer) Retain(cutoff time.Time, maxBytes int64) error {
	w.mu.Lock()
	err := w.begin()
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
