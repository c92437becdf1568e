package history

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/parquet-go/parquet-go"
)

// plan says which rows of a file are read.
type plan struct {
	match          Match
	from, to       time.Time
	withoutObjects bool
	state          bool // of each object only the newest state up to to, and what else the fold needs
	alive          bool // rows of type Alive too
}

// wantsFile reports whether a file may have rows of the plan, Alive ones aside.
func (p *plan) wantsFile(f *File) bool {
	return (p.to.IsZero() || !f.From.After(p.to)) && (p.from.IsZero() || !f.To.Before(p.from)) &&
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
	return m.Cluster == "" || within("cluster", m.Cluster)
}

// run is a run of rows of a row group.
type run struct{ from, to int64 }

// runsOf returns the rows of a row group that the plan has.
func (p *plan) runsOf(g parquet.RowGroup) (runs []run, err error) {
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

// cursorRows is how many rows a cursor reads at a time: objects may have a MiB.
const cursorRows = 16

// cursor reads the rows of one file.
type cursor struct {
	plan
	name   string
	file   *os.File
	groups []parquet.RowGroup // that are not read yet
	opened bool
	runs   []run // of the current group that are not read yet
	reader rowReader
	at     int64 // row that the reader returns next
	rows   []Row
	read   int // of rows: those that were returned
}

// rowReader reads rows of a row group.
type rowReader interface {
	Read([]Row) (int, error)
	SeekToRow(int64) error
	Close() error
}

func newCursor(f *os.File, p plan) *cursor { return &cursor{plan: p, name: f.Name(), file: f} }

func (c *cursor) next() (*Row, error) {
	for c.read == len(c.rows) {
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
	c.read++
	return &c.rows[c.read-1], nil
}

// fill reads the next rows, or turns to the next row group.
func (c *cursor) fill() error {
	if len(c.runs) == 0 {
		return c.nextGroup()
	}
	r := &c.runs[0]
	if c.at != r.from {
		if err := c.reader.SeekToRow(r.from); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		c.at = r.from
	}
	if c.rows == nil {
		c.rows = make([]Row, cursorRows)
	}
	rows := c.rows[:min(cursorRows, r.to-r.from)]
	clear(rows)
	n, err := c.reader.Read(rows)
	if n == 0 {
		return fmt.Errorf("%s ends within a row group: %w", c.name, errors.Join(err, io.ErrUnexpectedEOF))
	}
	c.rows, c.read, c.at, r.from = rows[:n], 0, c.at+int64(n), r.from+int64(n)
	if r.from == r.to {
		c.runs = c.runs[1:]
	}
	return nil
}

// nextGroup finds the rows of the next row group that has any.
func (c *cursor) nextGroup() error {
	if !c.opened {
		f, err := openParquet(c.file)
		if err != nil {
			return err
		}
		c.opened, c.groups = true, f.RowGroups()
	}
	if c.reader != nil {
		if err := c.reader.Close(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		c.reader = nil
	}
	for len(c.groups) > 0 {
		g := c.groups[0]
		c.groups = c.groups[1:]
		if !c.wantsGroup(g) {
			continue
		}
		runs, err := c.runsOf(g)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if len(runs) == 0 {
			continue
		}
		c.runs, c.at, c.reader = runs, 0, newRowReader(g, c.withoutObjects)
		return nil
	}
	return io.EOF
}

func newRowReader(g parquet.RowGroup, withoutObjects bool) rowReader {
	if withoutObjects {
		return &factsReader{GenericReader: parquet.NewGenericRowGroupReader[Facts](g)}
	}
	return parquet.NewGenericRowGroupReader[Row](g)
}

// factsReader reads all columns but the object.
type factsReader struct {
	*parquet.GenericReader[Facts]
	buf [cursorRows]Facts
}

func (r *factsReader) Read(rows []Row) (int, error) {
	clear(r.buf[:])
	n, err := r.GenericReader.Read(r.buf[:len(rows)])
	for i := range n {
		rows[i].Facts = r.buf[i]
	}
	return n, err
}
