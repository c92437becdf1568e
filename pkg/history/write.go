package history

import (
	"errors"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// idsKey is the name of metadata in a small file: the identities of the changes that its rows are of.
const idsKey = "kubecdc.ids"

const (
	pageBytes    = 256 << 10
	rowGroupRows = 16 << 10
	rowGroupSize = 128 << 20 // of objects, before compression
	writtenRows  = 64        // rows that are handed over at a time
)

// writeRows writes the rows of a source, which are sorted, to a file. f gets what the manifest says of the rows.
func writeRows(out io.Writer, from source, ids string, f *File) error {
	w := parquet.NewGenericWriter[Row](out, parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest, Concurrency: 1}),
		parquet.PageBufferSize(pageBytes), parquet.ColumnIndexSizeLimit(func([]string) int { return 512 }),
		parquet.SkipPageBounds("object"), parquet.SkipPageBounds("changed", "list", "element", "from"),
		parquet.SkipPageBounds("changed", "list", "element", "to"), parquet.SkipPageBounds("gap_reason"),
		parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("cluster"), parquet.Ascending("group"),
			parquet.Ascending("resource"), parquet.Ascending("namespace"), parquet.Ascending("name"), parquet.Ascending("sequence"))),
		parquet.CreatedBy("kubecdc", "", ""))
	if ids != "" {
		w.SetKeyValueMetadata(idsKey, ids)
	}
	rows, groupRows, groupBytes := make([]Row, 0, writtenRows), 0, 0
	for {
		row, err := from.next()
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return err
		}
		if !ended {
			rows = append(rows, *row)
			f.add(row)
			groupRows, groupBytes = groupRows+1, groupBytes+len(row.Object)
		}
		if len(rows) == writtenRows || ended {
			if _, err := w.Write(rows); err != nil {
				return err
			}
			rows = rows[:0]
		}
		if ended {
			return w.Close()
		}
		if len(rows) == 0 && (groupRows >= rowGroupRows || groupBytes >= rowGroupSize) {
			if err := w.Flush(); err != nil {
				return err
			}
			groupRows, groupBytes = 0, 0
		}
	}
}

// add adds a row that the file has to what the manifest says of it.
func (f *File) add(row *Row) {
	if f.Rows+f.Alive == 0 {
		f.FirstKey = row.Key()
	}
	f.LastKey = row.Key()
	if row.Type == Alive {
		f.Alive++
		return
	}
	at := row.Time()
	if f.Rows++; f.Rows == 1 {
		f.FirstSequence, f.LastSequence, f.From, f.To = row.Sequence, row.Sequence, at, at
	}
	f.FirstSequence, f.LastSequence = min(f.FirstSequence, row.Sequence), max(f.LastSequence, row.Sequence)
	if at.Before(f.From) {
		f.From = at
	}
	if at.After(f.To) {
		f.To = at
	}
}

// rowList is a source of rows in memory.
type rowList []Row

func (l *rowList) next() (*Row, error) {
	if len(*l) == 0 {
		return nil, io.EOF
	}
	row := &(*l)[0]
	*l = (*l)[1:]
	return row, nil
}
