package history

import (
	"errors"
	"io"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// idsKey is the name of metadata in a small file: the identities of the changes that its rows are of.
const idsKey = "kubecdc.ids"

// The sizes of pages before compression. Versions of an object, and objects of one owner, stand next to each other, so that
// a large page has most of its bytes from itself. Small files are merged many at a time, each with a page in memory.
const (
	smallPage = 256 << 10
	largePage = 4 << 20
)

const (
	rowGroupRows = 16 << 10
	writtenRows  = 64 // that are handed over at a time
)

// rowWriter writes rows, which are sorted, to a file.
type rowWriter struct {
	*parquet.GenericWriter[Row]
	file  *File // gets what the manifest says of the rows
	group int   // rows of the current row group
}

func newRowWriter(out io.Writer, page int, f *File) *rowWriter {
	return &rowWriter{file: f, GenericWriter: parquet.NewGenericWriter[Row](out,
		parquet.Compression(codec), parquet.PageBufferSize(page), parquet.ColumnIndexSizeLimit(func([]string) int { return 512 }),
		parquet.SkipPageBounds("object"), parquet.SkipPageBounds("changed", "list", "element", "from"),
		parquet.SkipPageBounds("changed", "list", "element", "to"), parquet.SkipPageBounds("gap_reason"),
		parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("cluster"), parquet.Ascending("group"),
			parquet.Ascending("resource"), parquet.Ascending("namespace"), parquet.Ascending("name"), parquet.Ascending("sequence"))),
		parquet.CreatedBy("kubecdc", "", ""))}
}

var codec = &zstd.Codec{Level: zstd.SpeedFastest, Concurrency: 1}

// writeRows writes rows and the end of the file.
func (w *rowWriter) writeRows(rows []Row) error {
	for part := range slices.Chunk(rows, writtenRows) {
		for i := range part {
			w.file.add(part[i].Type, part[i].Sequence, part[i].Key(), part[i].Time())
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return w.Close()
}

// writeRecords writes the records of a source and the end of the file.
func (w *rowWriter) writeRecords(from source) error {
	var buf [writtenRows]parquet.Row
	for n := 0; ; {
		r, err := from.next()
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return err
		}
		if !ended {
			w.file.add(r.text(columnType), r.sequence(), r.key(), r.time())
			buf[n] = append(buf[n][:0], r.cells...)
			n++
		}
		if n < len(buf) && !ended {
			continue
		}
		if _, err := w.WriteRows(buf[:n]); err != nil {
			return err
		}
		if ended {
			return w.Close()
		}
		if w.group += n; w.group >= rowGroupRows {
			if err := w.Flush(); err != nil {
				return err
			}
			w.group = 0
		}
		n = 0
	}
}

// add adds a row that the file has to what the manifest says of it.
func (f *File) add(kind string, sequence int64, key Key, at time.Time) {
	if f.Rows+f.Alive == 0 {
		f.FirstKey = key.clone()
	}
	if f.LastKey != key {
		f.LastKey = key.clone()
	}
	if kind == Alive {
		f.Alive++
		return
	}
	if f.Rows++; f.Rows == 1 {
		f.FirstSequence, f.LastSequence, f.From, f.To = sequence, sequence, at, at
	}
	f.FirstSequence, f.LastSequence = min(f.FirstSequence, sequence), max(f.LastSequence, sequence)
	if at.Before(f.From) {
		f.From = at
	}
	if at.After(f.To) {
		f.To = at
	}
}
