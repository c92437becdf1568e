package history

import (
	"cmp"
	"strings"
	"time"
	"unsafe"

	"github.com/parquet-go/parquet-go"
)

// Row is one record of the stream as a history stores it: a change of an object, what was seen of it in a list, its author,
// or a control record. The tags are the schema of the files; a new column is added at the end.
type Row struct {
	Facts
	Object string `parquet:"object,optional"` // JSON; "" where there is none
}

// Facts is a row without the object, which is most of its bytes.
type Facts struct {
	// Sequence numbers the rows in the order in which they were written, from 1, without a hole. The rows of an object are
	// in the order of its changes.
	Sequence int64 `parquet:"sequence,delta"`

	Cluster         string `parquet:"cluster,dict"`
	Group           string `parquet:"group,dict"` // "" is the core group
	Version         string `parquet:"version,dict"`
	Resource        string `parquet:"resource,dict"` // plural, lower case
	Kind            string `parquet:"kind,dict"`
	Namespace       string `parquet:"namespace,dict"` // "" for cluster-scoped objects
	Name            string `parquet:"name,dict"`      // "" for control records, which are about a resource
	UID             string `parquet:"uid,dict"`
	ResourceVersion string `parquet:"resource_version"`
	Type            string `parquet:"type,dict"` // that of the record (docs/events.md), Left or Alive

	ChangedAt  time.Time `parquet:"changed_at,optional,timestamp(microsecond)"` // made at this time or before; zero: not said
	NotBefore  time.Time `parquet:"not_before,optional,timestamp(microsecond)"` // and not before this one; zero: not known
	TimeSource string    `parquet:"time_source,optional,dict"`
	ObservedAt time.Time `parquet:"observed_at,timestamp(microsecond)"` // when the exporter read it

	User        string `parquet:"user,optional,dict"`        // authenticated; on rows of type attributed
	Manager     string `parquet:"manager,optional,dict"`     // field manager, as the client named itself
	Attribution string `parquet:"attribution,optional,dict"` // exact, with User

	Changed []Difference `parquet:"changed,list"`

	GapFrom   string `parquet:"gap_from,optional"` // last complete position; of an attribution.gap a time
	GapTo     string `parquet:"gap_to,optional"`   // position at which the stream is complete again
	GapReason string `parquet:"gap_reason,optional"`
}

// Difference is a place where an object differs from its state before. From and To are JSON; "" where there was, or is, no
// value.
type Difference struct {
	Path string `parquet:"path"` // JSON Pointer (RFC 6901)
	From string `parquet:"from,optional"`
	To   string `parquet:"to,optional"`
}

// Alive is the type of a row that repeats the newest row of an object which existed where a large file begins, with all that
// was known of it: the same Sequence, times and object, without Changed. It is no change. A reader needs it for the state at
// a time, and ignores it otherwise.
const Alive = "alive"

// Left is the type of the row of an object that edited rules no longer select: its states from there on are not known.
const Left = "left"

// Time returns when the change was made, at the latest, or else when it was read.
func (r *Facts) Time() time.Time {
	if r.ChangedAt.IsZero() {
		return r.ObservedAt
	}
	return r.ChangedAt
}

// IsState reports whether the row says which state an object has, or that it has none.
func (r *Facts) IsState() bool { return isState(r.Type) }

func isState(t string) bool {
	switch t {
	case "added", "updated", "snapshot", "sync", Alive:
		return true
	}
	return isEnd(t)
}

// IsEnd reports whether the row ends what the history has of an object, until another one.
func (r *Facts) IsEnd() bool { return isEnd(r.Type) }

func isEnd(t string) bool { return t == "deleted" || t == Left }

// Key is what files are sorted by: the object that a row is about. Control records have no name, so that they stand before
// the objects they concern.
type Key struct {
	Cluster   string `json:"cluster"`
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Key returns the key of the row.
func (r *Facts) Key() Key { return Key{r.Cluster, r.Group, r.Resource, r.Namespace, r.Name} }

// clone returns the key in memory of its own.
func (k Key) clone() Key {
	return Key{strings.Clone(k.Cluster), strings.Clone(k.Group), strings.Clone(k.Resource), strings.Clone(k.Namespace), strings.Clone(k.Name)}
}

// Compare orders keys as the files are sorted.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Cluster, o.Cluster), cmp.Compare(k.Group, o.Group), cmp.Compare(k.Resource, o.Resource),
		cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// Compare orders rows as the files are sorted: by object, and then in the order of writing.
func (r *Facts) Compare(o *Facts) int {
	return cmp.Or(r.Key().Compare(o.Key()), cmp.Compare(r.Sequence, o.Sequence))
}

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
