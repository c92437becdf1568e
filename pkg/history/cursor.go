package history

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"
)

// plan says which rows of a file are read.
type plan struct {
	Query
	state bool // of each object only the newest state up to To, and what else the fold needs
	alive bool // rows of type Alive too
	all   bool // every row
}

// wantsFile reports whether a file may have rows of the plan, Alive ones aside.
func (p *plan) wantsFile(f *File) bool {
	return f.LastSequence > p.After && (p.To.IsZero() || !f.From.After(p.To)) && (p.From.IsZero() || !f.To.Before(p.From)) &&
		(p.Match.Cluster == "" || f.FirstKey.Cluster <= p.Match.Cluster && p.Match.Cluster <= f.LastKey.Cluster)
}

// planColumns are what decides about a row.
var planColumns = []int{columnCluster, columnGroup, columnResource, columnNamespace, columnName, columnType, columnChangedAt, columnObservedAt}

// wantsRow reports whether the plan has a row.
func (p *plan) wantsRow(r record) bool {
	m, key, kind := &p.Match, r.key(), r.text(columnType)
	switch {
	case m.Cluster != "" && key.Cluster != m.Cluster, m.Resource != "" && (key.Resource != m.Resource || key.Group != m.Group):
		return false
	case m.Namespace != nil && key.Namespace != *m.Namespace && (key.Name != "" || key.Namespace != ""):
		return false
	case m.Name != "" && key.Name != "" && key.Name != m.Name:
		return false
	case p.Types != nil && !slices.Contains(p.Types, kind):
		return false
	case kind == Alive:
		return p.alive
	case p.state && kind == "attributed": // authors come later than what they wrote
		return true
	}
	at := r.time()
	return (p.To.IsZero() || !at.After(p.To)) && (p.From.IsZero() || !at.Before(p.From))
}

// wantsGroup reports whether a row group may have rows of the plan, by its statistics.
func (p *plan) wantsGroup(g parquet.RowGroup) bool {
	within := func(column, value string) bool {
		leaf, ok := g.Schema().Lookup(column)
		if !ok {
			return true
		}
		chunk, ok := g.ColumnChunks()[leaf.ColumnIndex].(*parquet.FileColumnChunk)
		if !ok {
			return true
		}
		least, most, ok := chunk.Bounds()
		return !ok || string(least.ByteArray()) <= value && value <= string(most.ByteArray())
	}
	m := &p.Match
	if m.Resource != "" && (!within("resource", m.Resource) || !within("group", m.Group)) {
		return false
	}
	if m.Namespace != nil && !within("namespace", *m.Namespace) && !within("namespace", "") ||
		m.Name != "" && !within("name", m.Name) && !within("name", "") { // control records have no name
		return false
	}
	return m.Cluster == "" || within("cluster", m.Cluster)
}

// run is a run of rows of a row group.
type run struct{ from, to int64 }

// runsOf returns the rows of a row group that the plan has.
func (p *plan) runsOf(g parquet.RowGroup) (runs []run, err error) {
	if p.all {
		return []run{{0, g.NumRows()}}, nil
	}
	r, err := newRowReader(g, func(column int) bool { return slices.Contains(planColumns, column) })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var last Key // of the newest row that was added, if it is a state of an object
	for row := range g.NumRows() {
		c, err := r.next()
		if err != nil {
			return nil, err
		}
		if !p.wantsRow(c) {
			continue
		}
		end := len(runs) - 1
		follows := end >= 0 && runs[end].to == row
		switch key := c.key(); {
		case !p.state || !isState(c.text(columnType)) || key.Name == "":
			last = Key{}
		case key != last:
			last = key.clone()
		case follows: // in the place of the one before it
			runs[end].to--
		}
		switch {
		case end >= 0 && runs[end].from == runs[end].to:
			runs[end] = run{row, row + 1}
		case end >= 0 && runs[end].to == row:
			runs[end].to++
		default:
			runs = append(runs, run{row, row + 1})
		}
	}
	return runs, nil
}

// skippedRows is how many rows are read and dropped rather than skipped: a seek decompresses the page again.
const skippedRows = 1024

// cursor reads the rows of one file.
type cursor struct {
	plan
	file   blob
	size   int64
	groups []parquet.RowGroup // that are not read yet
	opened bool
	runs   []run // of the current group that are not read yet
	reader *rowReader
	at     int64 // row that the reader returns next
}

func newCursor(f blob, size int64, p plan) *cursor { return &cursor{plan: p, file: f, size: size} }

func (c *cursor) next() (row record, err error) {
	for len(c.runs) == 0 && err == nil {
		err = c.nextGroup()
	}
	if err == nil {
		row, err = c.read(&c.runs[0])
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: %w", c.file.Name(), err)
	}
	return row, err
}

// read takes the first row of a run, which is the first one.
func (c *cursor) read(r *run) (row record, err error) {
	if r.from-c.at > skippedRows {
		err = c.reader.seek(r.from)
		c.at = r.from
	}
	for ; c.at <= r.from && err == nil; c.at++ {
		row, err = c.reader.next()
	}
	if r.from = c.at; r.from == r.to {
		c.runs = c.runs[1:]
	}
	return row, err
}

// nextGroup finds the rows of the next row group that has any.
func (c *cursor) nextGroup() error {
	if !c.opened {
		f, err := openParquet(c.file, c.size)
		if err != nil {
			return err
		}
		c.opened, c.groups = true, f.RowGroups()
	}
	if c.reader != nil {
		if err := c.reader.close(); err != nil {
			return err
		}
		c.reader = nil
	}
	for len(c.groups) > 0 {
		g := c.groups[0]
		c.groups = c.groups[1:]
		if !c.wantsGroup(g) {
			continue
		}
		var err error
		if c.runs, err = c.runsOf(g); err != nil {
			return err
		}
		if len(c.runs) == 0 {
			continue
		}
		c.at = 0
		c.reader, err = newRowReader(g, func(column int) bool { return column != columnObject || !c.WithoutObjects })
		return err
	}
	return io.EOF
}

// rowReader reads the rows of a row group. Each is valid until the next one: the memory of pages is used again, which the
// readers of parquet-go leave to the garbage collector.
type rowReader struct {
	columns []columnReader
	row     parquet.Row
}

// columnReader reads the values of a column.
type columnReader struct {
	pages  parquet.Pages // nil: the column is not read, and has no value
	page   parquet.Page
	rest   parquet.ValueReader // of the page; nil if all its values were read
	buf    [32]parquet.Value
	values []parquet.Value // of buf: those that were not taken
}

// newRowReader returns a reader of some columns. Records have no values of the others.
func newRowReader(g parquet.RowGroup, reads func(column int) bool) (*rowReader, error) {
	conversion, err := parquet.Convert(rowSchema, g.Schema())
	if err != nil {
		return nil, err
	}
	chunks := parquet.ConvertRowGroup(g, conversion).ColumnChunks()
	r := &rowReader{columns: make([]columnReader, len(chunks))}
	for i, c := range chunks {
		if reads(i) {
			r.columns[i].pages = c.Pages()
		}
	}
	return r, nil
}

// next returns the next row, which the row group has.
func (r *rowReader) next() (record, error) {
	r.row = r.row[:0]
	for i := range r.columns {
		var err error
		if c := &r.columns[i]; c.pages == nil {
			r.row = append(r.row, parquet.NullValue().Level(0, 0, i))
		} else if r.row, err = c.appendRow(r.row); errors.Is(err, io.EOF) {
			return record{}, errors.New("the file ends within a row group")
		} else if err != nil {
			return record{}, err
		}
	}
	return record{r.row}, nil
}

// appendRow appends the values of the next row, which are all in one page.
func (c *columnReader) appendRow(row parquet.Row) (parquet.Row, error) {
	for n := 0; ; n++ {
		for len(c.values) == 0 && (n == 0 || c.rest != nil) {
			if err := c.read(); err != nil {
				return row, err
			}
		}
		if n > 0 && (len(c.values) == 0 || c.values[0].RepetitionLevel() == 0) {
			return row, nil
		}
		row, c.values = append(row, c.values[0]), c.values[1:]
	}
}

// read reads values of the page, or turns to the next page.
func (c *columnReader) read() (err error) {
	if c.rest == nil {
		parquet.Release(c.page)
		if c.page, err = c.pages.ReadPage(); err == nil {
			c.rest = c.page.Values()
		}
		return err
	}
	n, err := c.rest.ReadValues(c.buf[:])
	if c.values = c.buf[:n]; errors.Is(err, io.EOF) {
		c.rest, err = nil, nil
	}
	return err
}

func (r *rowReader) seek(row int64) (err error) {
	for i := range r.columns {
		if c := &r.columns[i]; c.pages != nil {
			c.rest, c.values = nil, nil
			err = errors.Join(err, c.pages.SeekToRow(row))
		}
	}
	return err
}

func (r *rowReader) close() (err error) {
	for _, c := range r.columns {
		if c.pages != nil {
			parquet.Release(c.page)
			err = errors.Join(err, c.pages.Close())
		}
	}
	return err
}
