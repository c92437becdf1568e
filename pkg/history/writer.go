package history

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// FencedError means that another writer has claimed the history. Nothing that this one commits counts any more.
type FencedError struct{ Writer string }

func (e *FencedError) Error() string { return "the history was claimed by writer " + e.Writer }

// ErrGone means that the folder has lost the history while a writer had claimed it.
var ErrGone = errors.New("the history is gone")

// keptManifests is how many older manifests stay, for readers that have just looked for the newest.
const keptManifests = 8

// Writer is a claim on a history: from it on, no older writer commits anything. One goroutine appends, and one compacts and
// removes; these may be two.
type Writer struct {
	store Store
	id    string
	from  string // whose commit was the newest when this writer came
	lock  io.Closer

	encoder *rowWriter // of batches
	spare   []byte     // memory of a batch that is stored, for the next one

	largeRows int64 // see pickMerge
	fanIn     int

	mu       sync.Mutex // held during a commit
	manifest *Manifest
	unsure   bool       // a commit has failed, and may have been made
	replaced []replaced // files that are not removed yet
}

// OpenWriter claims the history in a store, and creates a folder if there is none.
func OpenWriter(in Store) (w *Writer, err error) {
	w = &Writer{store: in, id: strings.ToLower(rand.Text()[:12]), largeRows: 50_000, fanIn: 32, encoder: newRowWriter(nil, &File{})}
	if w.lock, err = in.lock(); err != nil {
		return nil, err
	}
	if err := w.claim(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// claim makes this writer the one whose commits count, and removes what no commit has.
func (w *Writer) claim() (err error) {
	if w.manifest, err = ReadManifest(w.store); err != nil {
		return err
	}
	w.from = cmp.Or(w.from, w.manifest.Writer, w.id)
	w.manifest.History = cmp.Or(w.manifest.History, strings.ToLower(rand.Text()[:12]))
	if err := w.commit(w.manifest.Files, w.manifest.Read); err != nil {
		return err
	}
	return w.removeUncommitted()
}

// Begin comes before the first NewBatch, and before each that follows an error. After a commit that failed it finds out
// whether that was made. It is a *FencedError if another writer has claimed the history, and ErrGone if that is gone.
func (w *Writer) Begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begin()
}

func (w *Writer) begin() error {
	if !w.unsure {
		return nil
	}
	if err := w.check(); err != nil {
		return err
	}
	return w.claim()
}

// check returns why nothing that this writer commits counts any more.
func (w *Writer) check() error {
	m, err := ReadManifest(w.store)
	if err != nil {
		return err
	}
	if m.Version < w.manifest.Version { // the folder is gone, or an older copy of it is there
		return ErrGone
	}
	if m.Writer != w.id {
		return &FencedError{m.Writer}
	}
	return nil
}

// removeUncommitted removes the files that no commit has: they were being written when a process ended.
func (w *Writer) removeUncommitted() error {
	committed := map[string]bool{}
	for _, f := range w.manifest.Files {
		committed[f.Path] = true
	}
	written, err := w.store.list(dayPrefix)
	if err != nil {
		return err
	}
	unfinished, err := w.store.list(manifestDir + "/")
	if err != nil {
		return err
	}
	unfinished = slices.DeleteFunc(unfinished, func(name string) bool { return !strings.HasSuffix(name, unfinishedExt) })
	for _, name := range append(written, unfinished...) {
		if !committed[name] {
			err = errors.Join(err, w.store.remove(name))
		}
	}
	w.replaced = nil
	return err
}

// commit makes a manifest of files the newest. The caller holds mu.
func (w *Writer) commit(files []File, read json.RawMessage) error {
	m := &Manifest{Format: FormatVersion, Version: w.manifest.Version + 1, Writer: w.id, History: w.manifest.History, Files: files, Read: read}
	content, err := json.Marshal(m)
	if err != nil {
		return err
	}
	w.unsure = true
	if w.manifest.Version > 0 {
		if _, err := w.store.read(manifestName(w.manifest.Version)); err != nil {
			return fmt.Errorf("commit: %w", cmp.Or(w.check(), err))
		}
	}
	if err := w.store.create(manifestName(m.Version), content); err != nil {
		if newest, readErr := ReadManifest(w.store); errors.Is(err, fs.ErrExist) && readErr == nil && newest.Writer != w.id {
			return &FencedError{newest.Writer}
		}
		return fmt.Errorf("commit: %w", err)
	}
	// A writer that was frozen may have created a number that was used before, and is gone since.
	all, err := manifestVersions(w.store)
	if err != nil {
		return err
	}
	if newest := all[len(all)-1]; newest > m.Version {
		return &FencedError{fmt.Sprintf("of commit %d", newest)}
	}
	w.manifest, w.unsure = m, false
	for _, old := range all {
		if old < m.Version-keptManifests {
			err = errors.Join(err, w.store.remove(manifestName(old)))
		}
	}
	return err
}

const (
	dayPrefix     = "day="
	dataExt       = ".parquet"
	unfinishedExt = ".tmp" // of what readers of all files must not see
)

// newPath returns the path of a new file of a day, from its first row on.
func newPath(day string, level int, first int64) string {
	return fmt.Sprintf("%s/%016d-%d-%s%s", day, first, level, strings.ToLower(rand.Text()[:8]), dataExt)
}

// day returns the folder that a file is in.
func (f *File) day() string {
	day, _, _ := strings.Cut(f.Path, "/")
	return day
}

// Batch is rows that are encoded and not stored yet.
type Batch struct {
	writer *Writer
	first  int64
	files  []encodedFile
	read   json.RawMessage
}

// With stores with the rows up to where their source has been read.
func (b *Batch) With(read json.RawMessage) { b.read = read }

type encodedFile struct {
	File
	content []byte
}

// NewBatch numbers rows, in their order, and encodes them. It changes the order of rows, and refers to no memory of theirs
// afterwards.
func (w *Writer) NewBatch(rows []Row) (*Batch, error) {
	w.mu.Lock()
	day, sequence, read := dayPrefix, w.manifest.LastSequence(), w.manifest.Read
	if n := len(w.manifest.Files); n > 0 {
		day = w.manifest.Files[n-1].day()
	}
	w.mu.Unlock()
	b := &Batch{writer: w, first: sequence + 1, read: read}
	for len(rows) > 0 {
		n := 0
		next := day
		for n < len(rows) {
			of := max(day, dayPrefix+rows[n].ObservedAt.UTC().Format("2006-01-02")) // clocks may be set back
			if n > 0 && of != next {
				break
			}
			next = of
			sequence++
			rows[n].Sequence = sequence
			n++
		}
		day = next
		f := encodedFile{File: File{Path: newPath(day, 0, rows[0].Sequence)}}
		if err := f.encode(w, rows[:n]); err != nil {
			return nil, err
		}
		b.files = append(b.files, f)
		rows = rows[n:]
	}
	return b, nil
}

// encode encodes the rows of a file.
func (f *encodedFile) encode(w *Writer, rows []Row) error {
	slices.SortFunc(rows, func(a, b Row) int { return a.Compare(&b.Facts) })
	out := bytes.NewBuffer(w.spare)
	w.spare = nil
	w.encoder.Reset(out)
	w.encoder.file = &f.File
	if err := w.encoder.writeRows(rows); err != nil {
		return err
	}
	f.content = out.Bytes()
	return nil
}

// Commit stores the rows. When it returns nil, they are durable, and a later writer has all of them. After an error they may
// be stored: see Begin.
func (b *Batch) Commit() error {
	w := b.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unsure || b.first != w.manifest.LastSequence()+1 {
		return errors.New("another commit of this writer has failed meanwhile")
	}
	files := slices.Clone(w.manifest.Files)
	for _, f := range b.files {
		if err := w.store.write(f.Path, func(out io.Writer) error { _, err := out.Write(f.content); return err }); err != nil {
			return err
		}
		files = append(files, f.File)
		w.spare = f.content[:0]
	}
	return w.commit(files, b.read)
}

// Manifest returns the newest commit of the writer, which is never changed, and the writer of the one before its first.
func (w *Writer) Manifest() (newest *Manifest, from string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.manifest, w.from
}

// Close ends the claim of the process. Nothing else is running.
func (w *Writer) Close() error {
	if w.lock == nil {
		return nil
	}
	return w.lock.Close()
}
