package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/screen/field"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
)

// Blame is a field of an object: its value, since when it has that, and its author.
type Blame struct {
	Path      string          `json:"path"` // JSON Pointer (RFC 6901)
	Value     json.RawMessage `json:"value"`
	Since     time.Time       `json:"since"`              // then or before
	NotBefore time.Time       `json:"notBefore,omitzero"` // and not before; zero if not known
	Found     bool            `json:"found,omitempty"`    // a list showed it: it may have it for longer
	User      string          `json:"user,omitempty"`
	Manager   string          `json:"manager,omitempty"`
}

// blamer follows one object.
type blamer struct {
	object history.Key
	root   *blamed
	end    string // how it ended
	writes []*write
}

// write is what made values: a version of the object.
type write struct {
	history.Facts
	found bool
}

// blamed is a value of the object with the write that made it, and those in it.
type blamed struct {
	raw      []byte
	made     *write
	segments []string // of items; nil for a value without any
	items    []*blamed
}

func (b *blamer) addRow(row *history.Row, s Scope) error {
	if row.Name == "" {
		return nil
	}
	if b.object.Name != "" && b.object != row.Key() {
		return exit.With(exit.Usage, fmt.Errorf("%s is more than one object: name its namespace with -n", s))
	}
	b.object = row.Key()
	switch {
	case row.Type == "attributed":
		for _, w := range b.writes {
			if w.UID == row.UID && w.ResourceVersion == row.ResourceVersion {
				w.User = row.User
			}
		}
	case row.IsEnd():
		b.root, b.end = nil, row.Type
	case row.IsState() && row.Object != "":
		w := &write{Facts: row.Facts, found: row.Type == "snapshot" || row.Type == "sync"}
		b.writes = append(b.writes, w)
		b.root = newBlamed(b.root, bytes.Clone([]byte(row.Object)), w)
	}
	return nil
}

// newBlamed returns a value in which what was there before keeps the write that made it.
func newBlamed(before *blamed, raw []byte, w *write) *blamed {
	if before != nil && bytes.Equal(before.raw, raw) {
		return before
	}
	now := &blamed{raw: raw, made: w}
	segments, values, isObject := diff.Members(raw)
	if !isObject && raw[0] == '[' {
		segments, values = diff.Items(raw)
	}
	now.segments = segments
	shift := before.shiftOf(segments, values)
	for i, value := range values {
		now.items = append(now.items, newBlamed(before.itemFor(segments[i], i-shift(i), raw[0]), value, w))
	}
	return now
}

// shiftOf returns by how many places the items of a list without keys have moved: those at the end of both are the same.
func (b *blamed) shiftOf(segments []string, values [][]byte) func(int) int {
	equal := 0
	if b != nil && len(segments) > 0 && segments[0] == "0" {
		for equal < min(len(values), len(b.items)) && bytes.Equal(values[len(values)-1-equal], b.items[len(b.items)-1-equal].raw) {
			equal++
		}
	}
	return func(i int) int {
		if i >= len(values)-equal {
			return len(values) - len(b.items)
		}
		return 0
	}
}

// itemFor returns the item with a segment, or in a list without keys at an index; nil if there is none.
func (b *blamed) itemFor(segment string, index int, kind byte) *blamed {
	if b == nil || b.raw[0] != kind {
		return nil
	}
	if kind == '[' && segment[0] != '[' {
		if index >= 0 && index < len(b.items) && b.segments[index][0] != '[' {
			return b.items[index]
		}
		return nil
	}
	if index >= 0 && index < len(b.segments) && b.segments[index] == segment {
		return b.items[index]
	}
	for i, own := range b.segments {
		if own == segment {
			return b.items[i]
		}
	}
	return nil
}

func (b *blamed) appendBlames(all *[]Blame, path string) {
	if field.IsBookkeeping(path) {
		return
	}
	for i, item := range b.items {
		item.appendBlames(all, path+"/"+b.segments[i])
	}
	if len(b.items) == 0 {
		w := b.made
		*all = append(*all, Blame{path, b.raw, w.Time(), w.NotBefore, w.found, w.User, w.Manager})
	}
}
