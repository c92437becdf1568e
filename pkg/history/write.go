package history

import (
	"errors"
	"io"
	"time"

	"github.com/klauspost/compress/s2"
	kzstd "github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
)

// The sizes of pages before compression. Versions of an object, and objects of one owner, stand next to each other, so that
// a page has most of its bytes from itself. A merge has one page of each column of each file in memory.
const (
	smallPage = 24 << 10
	largePage = 256 << 10
)

const (
	rowGroupRows  = 16 << 10
	rowGroupBytes = 8 << 20 // that the writer holds, mostly compressed
)

// rowWriter writes rows, which are sorted, to a file.
type rowWriter struct {
	*parquet.GenericWriter[Row]
	file *File // gets the facts of the rows that the manifest has
}

// newRowWriter returns a writer of a file. Bounds of pages are in the index of the file, and not in the pages too: of a
// column with objects these would be four whole ones.
func newRowWriter(out io.Writer, f *File) *rowWriter {
	page, codec := smallPage, compress.Codec(strong{&parquet.Zstd})
	switch {
	case f.Large:
		page = largePage
	case f.Level == 0:
		codec = quick{&parquet.Snappy}
	}
	return &rowWriter{file: f, GenericWriter: parquet.NewGenericWriter[Row](out,
		parquet.Compression(codec), parquet.PageBufferSize(page), parquet.ColumnIndexSizeLimit(func([]string) int { return 512 }),
		parquet.DataPageStatistics(false),
		parquet.SkipPageBounds("object"), parquet.SkipPageBounds("changed", "list", "element", "from"),
		parquet.SkipPageBounds("changed", "list", "element", "to"), parquet.SkipPageBounds("gap_reason"),
		parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("cluster"), parquet.Ascending("group"),
			parquet.Ascending("resource"), parquet.Ascending("namespace"), parquet.Ascending("name"), parquet.Ascending("sequence"))),
		parquet.CreatedBy("kubecdc", "", ""))}
}

// quick is the codec of what is written first, and merged within minutes: twice the size of strong in less than half of the
// time. Everything that reads Parquet has both.
type quick struct{ compress.Codec }

// Encode implements compress.Codec.
func (quick) Encode(dst, src []byte) ([]byte, error) { return s2.EncodeSnappy(dst, src), nil }

// pages compresses with an encoder that stays: those of zstd.Codec go with each garbage collection, and have 8 MB each.
var pages, _ = kzstd.NewWriter(nil, kzstd.WithEncoderConcurrency(1), kzstd.WithEncoderLevel(kzstd.SpeedFastest),
	kzstd.WithLowerEncoderMem(true), kzstd.WithWindowSize(2*largePage), kzstd.WithEncoderCRC(false), kzstd.WithZeroFrames(true))

// strong is the codec of what was merged.
type strong struct{ compress.Codec }

// Encode implements compress.Codec.
func (strong) Encode(dst, src []byte) ([]byte, error) { return pages.EncodeAll(src, dst[:0]), nil }

// writeRows writes rows and the end of the file.
func (w *rowWriter) writeRows(rows []Row) error {
	var buf [1]parquet.Row // parquet-go's Write writes some nulls behind nulls and values as values
	for i := range rows {
		r := &rows[i]
		w.file.add(r.Type, r.Sequence, r.Key(), r.Time())
		buf[0] = w.Schema().Deconstruct(buf[0][:0], r)
		if _, err := w.WriteRows(buf[:]); err != nil {
			return err
		}
	}
	return w.end()
}

// writeRecords writes the records of a source and the end of the file.
func (w *rowWriter) writeRecords(from source) error {
	for rows, begin := 0, int64(0); ; {
		r, err := from.next()
		if errors.Is(err, io.EOF) {
			return w.end()
		}
		if err != nil {
			return err
		}
		w.file.add(r.text(columnType), r.sequence(), r.key(), r.time())
		if _, err := w.WriteRows([]parquet.Row{r.cells}); err != nil {
			return err
		}
		if rows++; rows >= rowGroupRows || w.Size()-begin >= rowGroupBytes {
			if err := w.Flush(); err != nil {
				return err
			}
			rows, begin = 0, w.Size()
		}
	}
}

// end writes the end of the file.
func (w *rowWriter) end() error {
	err := w.Close()
	w.file.Bytes = w.Size()
	return err
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
