package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"time"

	"github.com/parquet-go/parquet-go"
)

// Snapshot is a history as of one commit. What the writer does meanwhile, compaction and retention too, does not change it.
// It holds its files open. Its methods may be called concurrently.
type Snapshot struct {
	Manifest *Manifest
	files    []blob
}

// Open returns the newest commit of the history in a store. A store without one is an error that is fs.ErrNotExist. The
// caller closes the snapshot.
func Open(in Store) (*Snapshot, error) {
	for {
		m, err := ReadManifest(in)
		if err != nil {
			return nil, err
		}
		if m.Version == 0 {
			return nil, fmt.Errorf("%s holds no history: %w", in, fs.ErrNotExist)
		}
		s, err := openFiles(in, m)
		if !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		if again, e := ReadManifest(in); e != nil || again.Version == m.Version { // otherwise the writer has replaced files
			return nil, errors.Join(err, e)
		}
	}
}

func openFiles(in Store, m *Manifest) (*Snapshot, error) {
	s := &Snapshot{Manifest: m}
	for _, f := range m.Files {
		file, err := in.open(f.Path, f.Bytes)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.files = append(s.files, file)
	}
	return s, nil
}

// Close closes the files.
func (s *Snapshot) Close() (err error) {
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Match selects objects, and the control records of their resources.
type Match struct {
	Cluster   string  // "" for all
	Group     string  // only with Resource
	Resource  string  // "" for all
	Namespace *string // nil for all; "" for cluster-scoped objects
	Name      string  // "" for all
}

// Query is what [Snapshot.Rows] returns.
type Query struct {
	Match
	From, To time.Time // bounds of Row.Time, both included; zero: none
	After    int64     // leaves out files whose rows all have this sequence or a lower one
	Types    []string  // of rows; nil: all
	// WithoutObjects leaves Row.Object empty, which makes reading many times faster.
	WithoutObjects bool
}

// Rows returns the rows of a query, without those of type [Alive], by object, and those of an object in the order of its
// changes: the control records of a resource come before its objects, those of a namespace before the objects there. Rows
// are the caller's.
func (s *Snapshot) Rows(ctx context.Context, q Query) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) { each(ctx, s.merge(0, plan{Query: q}), yield) }
}

// StateAt returns the objects that existed at t, by object: of each the row of its newest state, with the author where one
// is known. Which of them lie in a gap, the caller finds by the gaps among [Snapshot.Rows]. Rows are the caller's.
func (s *Snapshot) StateAt(ctx context.Context, t time.Time, m Match) iter.Seq2[*Row, error] {
	p := plan{Query: Query{Match: m, To: t}, state: true}
	return func(yield func(*Row, error) bool) {
		each(ctx, &objects{from: &fold{from: s.merge(s.Manifest.base(t), p)}}, yield)
	}
}

// merge returns the rows of the files from base on, by object.
func (s *Snapshot) merge(base int, p plan) source {
	m := &merger{}
	for i := base; i < len(s.files); i++ {
		if p.wantsFile(&s.Manifest.Files[i]) || p.state && i == base {
			first := p
			first.alive = p.state && i == base
			m.sources = append(m.sources, newCursor(s.files[i], s.Manifest.Files[i].Bytes, first))
		}
	}
	return m
}

// each passes the rows of a source.
func each(ctx context.Context, from source, yield func(*Row, error) bool) {
	for {
		next, err := from.next()
		if errors.Is(err, io.EOF) {
			return
		}
		row := &Row{}
		if err = errors.Join(err, ctx.Err()); err == nil {
			err = rowSchema.Reconstruct(row, next.cells)
		}
		if !yield(row, err) || err != nil {
			return
		}
	}
}

var rowSchema = parquet.SchemaOf(Row{})

// source returns records by object, each valid until the next call; io.EOF comes after the last one.
type source interface{ next() (record, error) }

// openParquet opens a file for reading.
func openParquet(f blob, size int64) (*parquet.File, error) {
	file, err := parquet.OpenFile(f, size, parquet.SkipBloomFilters(true), parquet.ReadBufferSize(1<<10))
	if errors.Is(err, io.EOF) { // a source that returns it has no more rows
		err = errors.New("the file is shorter than it was written")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return file, nil
}
