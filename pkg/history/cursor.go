package history

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
)

// plan says which rows of a file are read.
type plan struct {
	match          Match
	from, to       time.Time
	after          int64 // files with no higher sequence are left out
	types          []string
	withoutObjects bool
	state          bool // of each object only the newest state up to to, and what else the fold needs
	alive          bool // rows of type Alive too
	all            bool // every row
}

func newPlan(q Query) plan {
	return plan{match: q.Match, from: q.From, to: q.To, after: q.After, types: q.Types, withoutObjects: q.WithoutObjects}
}

// wantsFile reports whether a file may have rows of the plan, Alive ones aside.
func (p *plan) wantsFile(f *File) bool {
	return f.LastSequence > p.after && (p.to.IsZero() || !f.From.After(p.to)) && (p.from.IsZero() || !f.To.Before(p.from)) &&
		(p.match.Cluster == "" || f.FirstKey.Cluster <= p.match.Cluster && p.match.Cluster <= f.LastKey.Cluster)
}

// planColumns is what decides about a row.
type planColumns struct {
	Cluster    string    `parquet:"cluster,dict"`
	Group      string    `parquet:"group,dict"`
	Resource   string    `parquet:"resource,dict"`
	Namespace  string    `parquet:"namespace,dict"`
	Name       string    `parquet:"name,dict"`
	Type       string    `parquet:"type,dict"`
	ChangedAt  time.Time `parquet:"changed_at,optional,timestamp(microsecond)"`
	ObservedAt time.Time `parquet:"observed_at,timestamp(microsecond)"`
}

// wantsRow reports whether the plan has a row.
func (p *plan) wantsRow(c *planColumns) bool {
	m := &p.match
	switch {
	case m.Cluster != "" && c.Cluster != m.Cluster, m.Resource != "" && (c.Resource != m.Resource || c.Group != m.Group):
		return false
	case m.Namespace != nil && c.Namespace != *m.Namespace && (c.Name != "" || c.Namespace != ""):
		return false
	case m.Name != "" && c.Name != "" && c.Name != m.Name:
		return false
	case p.types != nil && !slices.Contains(p.types, c.Type):
		return false
	case c.Type == Alive:
		return p.alive
	case p.state && c.Type == "attributed": // authors come later than what they wrote
		return true
	}
	at := c.ChangedAt
	if at.IsZero() {
		at = c.ObservedAt
	}
	return (p.to.IsZero() || !at.After(p.to)) && (p.from.IsZero() || !at.Before(p.from))
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
	m := &p.match
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
	r := parquet.NewGenericRowGroupReader[planColumns](g)
	defer func() { err = errors.Join(err, r.Close()) }()
	var buf [256]planColumns
	var last planColumns // the newest row that was added, if it is a state
	for at := int64(0); ; {
		n, err := r.Read(buf[:])
		for i := range buf[:n] {
			c := &buf[i]
			if !p.wantsRow(c) {
				continue
			}
			row := at + int64(i)
			if p.state && isState(c.Type) && c.Name != "" {
				if c.Name == last.Name && c.Namespace == last.Namespace && c.Resource == last.Resource && c.Group == last.Group &&
					c.Cluster == last.Cluster && runs[len(runs)-1].to == row {
					runs[len(runs)-1].to--
				}
				last = *c
			} else {
				last = planColumns{}
			}
			switch end := len(runs) - 1; {
			case end >= 0 && runs[end].from == runs[end].to:
				runs[end] = run{row, row + 1}
			case end >= 0 && runs[end].to == row:
				runs[end].to++
			default:
				runs = append(runs, run{row, row + 1})
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) {
			return runs, nil
		}
		if err != nil {
			return nil, err
		}
	}
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
		row.cells, err = c.read(&c.runs[0])
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: %w", c.file.Name(), err)
	}
	return row, err
}

// read takes the first row of a run, which is the first one.
func (c *cursor) read(r *run) (row parquet.Row, err error) {
	if r.from-c.at > skippedRows {
		if err := c.reader.seek(r.from); err != nil {
			return nil, err
		}
		c.at = r.from
	}
	for ; c.at <= r.from; c.at++ {
		if row, err = c.reader.next(); errors.Is(err, io.EOF) {
			return nil, errors.New("the file ends within a row group")
		} else if err != nil {
			return nil, err
		}
	}
	if r.from = c.at; r.from == r.to {
		c.runs = c.runs[1:]
	}
	return row, nil
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
		schema := rowSchema
		if c.withoutObjects { // the columns that it has are the first ones
			schema = factsSchema
		}
		c.at = 0
		c.reader, err = newRowReader(g, schema)
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
	pages  parquet.Pages
	page   parquet.Page
	rest   parquet.ValueReader // of the page; nil if all its values were read
	buf    [32]parquet.Value
	values []parquet.Value // of buf: those that were not taken
}

func newRowReader(g parquet.RowGroup, schema *parquet.Schema) (*rowReader, error) {
	conversion, err := parquet.Convert(schema, g.Schema())
	if err != nil {
		return nil, err
	}
	chunks := parquet.ConvertRowGroup(g, conversion).ColumnChunks()
	r := &rowReader{columns: make([]columnReader, len(chunks))}
	for i, c := range chunks {
		r.columns[i].pages = c.Pages()
	}
	return r, nil
}

// next returns the next row; io.EOF behind the last one.
func (r *rowReader) next() (row parquet.Row, err error) {
	r.row = r.row[:0]
	for i := range r.columns {
		if r.row, err = r.columns[i].appendRow(r.row); err != nil {
			return nil, err
		}
	}
	return r.row, nil
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
		c := &r.columns[i]
		c.rest, c.values = nil, nil
		err = errors.Join(err, c.pages.SeekToRow(row))
	}
	return err
}

func (r *rowReader) close() (err error) {
	for _, c := range r.columns {
		parquet.Release(c.page)
		err = errors.Join(err, c.pages.Close())
	}
	return err
}
