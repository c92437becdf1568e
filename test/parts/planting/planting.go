// Package planting holds records that another writer, or a fault, puts into a destination, and which of them change what its
// readers have. The verification is held to it in memory and on real servers.
package planting

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// Record is a record as a destination stores it. Its headers have the names in package format.
type Record struct {
	Key     string
	Value   []byte
	Headers map[string]string
}

// Encode returns a change as a sink writes it.
func Encode(f format.Format, c *event.Change) Record {
	r := Record{Key: c.Key(), Value: f.AppendValue(nil, c)}
	if f == format.CloudEvents || f == format.CloudEventsStructured { // they have other headers, which say the same
		return r
	}
	r.Headers = map[string]string{
		format.HeaderID: c.ID(), format.HeaderType: string(c.Type), format.HeaderCluster: c.Cluster, format.HeaderKey: c.Key(),
	}
	if f.NeedsFactsHeader(c) {
		r.Headers[format.HeaderChange] = string(format.AppendFacts(nil, c))
	}
	return r
}

// Objects are what a plant is made of: two objects that exist, one that is gone, and one that never was.
type Objects struct {
	Format             format.Format
	Older, Kept, Other Record // two of one object, and one of another
	Former, Gone       Record // the one of another before it was deleted, and its delete
	Mark               Record // a watermark
	State              *event.Change
	Never              string // a name
}

// Named is the object that a plant is about.
type Named int

// The objects that plants are about.
const (
	Nothing Named = iota
	Kept
	Gone
	Never
)

// Readers are those whose objects a plant changes.
type Readers int

// The readers. Those of rows, and those of what replaces older records of a key, have the last record of each key.
const (
	OfHistory Readers = 1 << iota
	OfReplaced
	OfRows
)

// ReadersOf returns the readers of a destination.
func ReadersOf(f format.Format, replaces bool) Readers {
	switch {
	case f.HasRows():
		return OfRows
	case replaces:
		return OfReplaced
	}
	return OfHistory
}

const (
	ofAll  = OfHistory | OfReplaced | OfRows
	ofKeys = OfReplaced | OfRows
)

// Plant is what is planted, record by record.
type Plant struct {
	Name    string
	Records func(o Objects) []Record
	Named   Named
	Kind    string // by the words of a verification; "" for any
	Changes Readers
}

// All returns every plant.
func All() []Plant {
	return []Plant{
		{"bare tombstone", kept(""), Kept, "missing", ofKeys},
		{"bare tombstone of a deleted", gone(""), Nothing, "", 0},
		{"bare tombstone of an unknown", never(""), Nothing, "", 0},
		{"junk", kept("junk"), Kept, "malformed", ofKeys},
		{"junk in braces", kept(`{"a":`), Kept, "malformed", ofKeys},
		{"number", kept("7"), Kept, "malformed", ofKeys},
		{"boolean", kept("true"), Kept, "malformed", ofKeys},
		{"null", kept("null"), Kept, "malformed", ofKeys},
		{"list", kept("[]"), Kept, "malformed", ofKeys},
		{"blanks", kept("  \n"), Kept, "malformed", ofKeys},
		{"bytes", kept("\x00\xff\xfe"), Kept, "malformed", ofKeys},
		{"empty object", kept("{}"), Kept, "malformed", ofKeys},
		{"junk under a deleted", gone("{}"), Gone, "malformed", ofKeys},
		{"junk under an unknown", never("{}"), Never, "malformed", ofKeys},
		{"row without our headers", func(o Objects) []Record { return under(o.Kept.Key, string(o.State.After)) }, Kept, "malformed", ofKeys},
		{"other's row under the key", func(o Objects) []Record { return moved(o.Other, o.Kept.Key) }, Kept, "malformed", ofKeys},
		{"other's row under a deleted", func(o Objects) []Record { return moved(o.Other, o.Gone.Key) }, Gone, "malformed", ofKeys},
		{"other's delete under the key", func(o Objects) []Record { return moved(o.Gone, o.Kept.Key) }, Kept, "", ofKeys},
		{"watermark under the key", func(o Objects) []Record { return moved(o.Mark, o.Kept.Key) }, Kept, "", ofKeys},
		{"another cluster's record under the key", anotherClusters, Kept, "malformed", ofKeys},
		{"dead letter under the key", deadLetter, Kept, "malformed", ofKeys},
		{"same ID with altered content", altered, Kept, "malformed", ofKeys},
		{"row of another cluster's key", func(o Objects) []Record {
			_, rest, _ := strings.Cut(o.Kept.Key, "/")
			return under("d/"+rest, "{}")
		}, Nothing, "", 0},
		{"junk under another resource", func(o Objects) []Record { return under(o.State.Cluster+"/apps/deployments/ns/a", "{}") }, Nothing, "", 0},
		{"junk under a key of no object", func(o Objects) []Record { return under(strings.TrimSuffix(o.Kept.Key, o.State.Name), "{}") }, Nothing, "", 0},
		{"junk under no key", func(Objects) []Record { return under("", "{}") }, Nothing, "", 0},
		{"junk under a foreign key", func(Objects) []Record { return under("theirs", "{}") }, Nothing, "", 0},
		{"repetition of the newest", func(o Objects) []Record { return []Record{o.Kept} }, Nothing, "", 0},
		{"repetition of the delete", func(o Objects) []Record { return []Record{o.Gone} }, Nothing, "", 0},
		{"junk, and the row behind it", func(o Objects) []Record { return append(under(o.Kept.Key, "x"), o.Kept) }, Nothing, "", 0},
		{"junk of a deleted, and the delete", func(o Objects) []Record { return append(under(o.Gone.Key, "x"), o.Gone) }, Nothing, "", 0},
		{"repetition of an older record", func(o Objects) []Record { return []Record{o.Older} }, Kept, "", ofAll},
		{"repetition of a deleted one's record", func(o Objects) []Record { return []Record{o.Former} }, Gone, "", ofAll},
		{"delete", deleteAt(1), Kept, "missing", ofAll},
		{"older delete", deleteAt(-1), Kept, "", ofAll},
		{"newer version", updateAt(1), Kept, "different", ofAll},
		{"older version", updateAt(-1), Kept, "", ofAll},
		{"version far ahead", updateAt(900_000_000_000), Kept, "different", ofAll},
		{"another uid", change(func(c *event.Change) { c.Type, c.UID, c.Before = event.Added, "other", nil }, 1), Kept, "different", ofAll},
		{"added object", addedObject, Never, "ghost", ofAll},
		{"record that ends in the middle", cutRecord, Kept, "malformed", ofKeys},
	}
}

// under returns a record with nothing but a key and a value.
func under(key, value string) []Record {
	r := Record{Key: key}
	if value != "" { // else it is a tombstone
		r.Value = []byte(value)
	}
	return []Record{r}
}

func kept(value string) func(Objects) []Record {
	return func(o Objects) []Record { return under(o.Kept.Key, value) }
}

func gone(value string) func(Objects) []Record {
	return func(o Objects) []Record { return under(o.Gone.Key, value) }
}

func never(value string) func(Objects) []Record {
	return func(o Objects) []Record { return under(strings.TrimSuffix(o.Kept.Key, o.State.Name)+o.Never, value) }
}

// moved returns a record under another key.
func moved(r Record, key string) []Record {
	r.Key = key
	return []Record{r}
}

// change returns a change of the kept object, a number of versions after its last one.
func change(edit func(c *event.Change), by int) func(Objects) []Record {
	return func(o Objects) []Record {
		c := *o.State
		version, _ := strconv.Atoi(c.ResourceVersion)
		former := c.ResourceVersion
		c.Type, c.Before, c.ResourceVersion = event.Updated, c.After, strconv.Itoa(version+by)
		c.After = bytes.ReplaceAll(c.After, []byte(`"`+former+`"`), []byte(`"`+c.ResourceVersion+`"`))
		edit(&c)
		return []Record{Encode(o.Format, &c)}
	}
}

func updateAt(by int) func(Objects) []Record { return change(func(*event.Change) {}, by) }

func deleteAt(by int) func(Objects) []Record {
	return change(func(c *event.Change) { c.Type, c.After = event.Deleted, nil }, by)
}

func addedObject(o Objects) []Record {
	return change(func(c *event.Change) {
		c.Type, c.UID, c.Before, c.Name = event.Added, "never", nil, o.Never
		c.After = bytes.ReplaceAll(c.After, []byte(o.State.Name), []byte(o.Never))
	}, 1)(o)
}

func anotherClusters(o Objects) []Record {
	return moved(change(func(c *event.Change) { c.Cluster = "d" }, 1)(o)[0], o.Kept.Key)
}

func deadLetter(o Objects) []Record {
	return change(func(c *event.Change) { c.DeadLetter = &event.DeadLetterInfo{Reason: "refused"} }, 1)(o)
}

// altered returns the last record with the same ID and another content.
func altered(o Objects) []Record {
	o.Kept.Value = bytes.ReplaceAll(o.Kept.Value, []byte(`"step":`), []byte(`"stop":`))
	return []Record{o.Kept}
}

func cutRecord(o Objects) []Record {
	value := string(updateAt(1)(o)[0].Value)
	return under(o.Kept.Key, value[:strings.LastIndex(value, `"step"`)])
}
