package history

import (
	"cmp"
	"time"
	"unsafe"

	"github.com/parquet-go/parquet-go"
)

// record is a row as the columns of a file have it. Merges pass records on, so that objects are neither copied nor decoded.
// It is valid until the next one of its source.
type record struct{ cells parquet.Row }

// The columns. A record has one cell of each before those of Changed, which have one for each difference.
const (
	columnSequence = iota
	columnCluster
	columnGroup
	_ // version
	columnResource
	_ // kind
	columnNamespace
	columnName
	columnUID
	columnResourceVersion
	columnType
	columnChangedAt
	_ // not before
	_ // time source
	columnObservedAt
	columnUser
	_ // manager
	columnAttribution
	columnChangedPath
	columnChangedFrom
	columnChangedTo
	_ // gap from
	_ // gap to
	_ // gap reason
	columnObject
)

func (r record) text(column int) string {
	b := r.cells[column].ByteArray()
	return unsafe.String(unsafe.SliceData(b), len(b))
}

func (r record) sequence() int64 { return r.cells[columnSequence].Int64() }

func (r record) key() Key {
	return Key{r.text(columnCluster), r.text(columnGroup), r.text(columnResource), r.text(columnNamespace), r.text(columnName)}
}

// time returns what [Facts.Time] does.
func (r record) time() time.Time {
	at := r.cells[columnChangedAt]
	if at.IsNull() {
		at = r.cells[columnObservedAt]
	}
	return time.UnixMicro(at.Int64()).UTC()
}

// compare orders records as the files are sorted.
func (r record) compare(o record) int {
	for _, column := range [...]int{columnCluster, columnGroup, columnResource, columnNamespace, columnName} {
		if c := cmp.Compare(r.text(column), o.text(column)); c != 0 {
			return c
		}
	}
	return cmp.Compare(r.sequence(), o.sequence())
}

// asAlive returns the record as one of type [Alive], with an author if there is one. It has cells of its own.
func (r record) asAlive(author record) record {
	cells := make(parquet.Row, 0, len(r.cells))
	for _, cell := range r.cells {
		switch column := cell.Column(); {
		case column == columnType:
			cell = parquet.ByteArrayValue([]byte(Alive)).Level(0, 0, column)
		case column >= columnChangedPath && column <= columnChangedTo:
			if len(cells) > 0 && cells[len(cells)-1].Column() == column {
				continue
			}
			cell = parquet.NullValue().Level(0, 0, column)
		case author.cells != nil && (column == columnUser || column == columnAttribution):
			cell = author.cells[column]
		}
		cells = append(cells, cell)
	}
	return record{cells}
}
