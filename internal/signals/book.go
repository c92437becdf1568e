package signals

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// How many signals are kept after their end. Those that have changed nothing do not push out others.
const (
	maxEnded     = 100
	maxUnchanged = 20
)

// Book is all signals that are kept, the oldest first. Its methods change it and contact nothing.
type Book struct {
	Revision uint64 // number of changes: of two books of one deployment the higher one is newer
	Signals  []Signal
}

// Find returns the signal with an ID.
func (b *Book) Find(id string) (Signal, bool) {
	i := b.index(id)
	if i < 0 {
		return Signal{}, false
	}
	return b.Signals[i], true
}

// ActivePause returns the pause that is in force for a sink or a rule.
func (b *Book) ActivePause(of Subject) (Signal, bool) {
	for _, s := range b.Signals {
		if s.Kind == Pause && s.State == Active && s.Subject() == of {
			return s, true
		}
	}
	return Signal{}, false
}

// Put adds a signal, or replaces the one with its ID. A pause supersedes the one in force. The oldest ended signals beyond
// the bounds are dropped.
func (b *Book) Put(s Signal) {
	if s.Kind == Pause && s.State == Active {
		if before, paused := b.ActivePause(s.Subject()); paused && before.ID != s.ID {
			s.Since = before.Since
			b.Put(before.End(Superseded, s.Created, 0, "by signal "+s.ID))
		}
	}
	if i := b.index(s.ID); i >= 0 {
		s.number = b.Signals[i].number
		b.Signals[i] = s
	} else {
		s.number = 1
		if n := len(b.Signals); n > 0 {
			s.number = b.Signals[n-1].number + 1
		}
		b.Signals = append(b.Signals, s)
	}
	changedNothing := func(s State) bool { return s == Refused || s == Nothing }
	b.dropOldest(maxUnchanged, changedNothing)
	b.dropOldest(maxEnded, func(s State) bool { return s != Active && !changedNothing(s) })
}

// dropOldest drops the oldest signals in a state beyond a number of them.
func (b *Book) dropOldest(most int, is func(State) bool) {
	n := 0
	for _, s := range b.Signals {
		if is(s.State) {
			n++
		}
	}
	b.Signals = slices.DeleteFunc(b.Signals, func(s Signal) bool {
		if n <= most || !is(s.State) {
			return false
		}
		n--
		return true
	})
}

// PutIfActive replaces the signal with the ID of s, unless that has ended meanwhile.
func (b *Book) PutIfActive(s Signal) {
	if before, ok := b.Find(s.ID); ok && before.State == Active {
		b.Put(s)
	}
}

func (b *Book) index(id string) int {
	return slices.IndexFunc(b.Signals, func(s Signal) bool { return s.ID == id })
}

// keyRevision is the number under which the revision is stored. Signals have higher ones, in their order.
const keyRevision = 0

// encode returns the book as it is stored: by number of the entry.
func (b *Book) encode() (map[uint64][]byte, error) {
	entries := map[uint64][]byte{keyRevision: strconv.AppendUint(nil, b.Revision, 10)}
	for _, s := range b.Signals {
		text, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		entries[s.number] = text
	}
	return entries, nil
}

// Decode reads a book from its entries; none are a book without signals.
func Decode(entries map[uint64][]byte) (b Book, err error) {
	for _, number := range slices.Sorted(maps.Keys(entries)) {
		if number == keyRevision {
			b.Revision, err = strconv.ParseUint(string(entries[number]), 10, 64)
		} else {
			s := Signal{number: number}
			err = json.Unmarshal(entries[number], &s)
			b.Signals = append(b.Signals, s)
		}
		if err != nil {
			return b, fmt.Errorf("the stored signals cannot be read: %w", err)
		}
	}
	return b, nil
}
