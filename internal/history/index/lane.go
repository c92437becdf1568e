package index

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// What is read of all lanes, and has no row yet. Tests make it less.
var (
	maxAhead      = 24 << 20 // bytes
	maxAheadItems = 32 << 10
	minAheadItems = 64 // of a lane
)

// place is up to where a lane has been read.
type place struct {
	Next int64     `json:"next"`           // position of the next record
	Last int64     `json:"last"`           // and of the newest one before it; -1 if there was none
	Sum  uint32    `json:"sum"`            // of that one, which shows whether the lane is still the same
	Time time.Time `json:"time,omitempty"` // when that was observed, or one before it
}

// lane is a partition of a topic, or a stream.
type lane struct {
	sinks.StoredLane
	*place
	read   int64 // position up to which it has been read ahead
	ahead  []item
	bytes  int
	full   bool
	isNew  bool // its content is another one than before
	starts bool // records are gone, and none behind these was taken yet
}

// item is a record that was read ahead.
type item struct {
	change   *event.Change // nil if there is none
	isRow    bool
	position int64
	sum      uint32
	size     int
	at       time.Time // when it was observed, and not before any record that its lane has before it
}

func (l *lane) name() string { return fmt.Sprintf("%s/%d", l.Target, l.Index) }

// time returns up to when the lane has been read.
func (l *lane) time() time.Time {
	if len(l.ahead) > 0 {
		return l.ahead[len(l.ahead)-1].at
	}
	return l.Time
}

// checkPlace returns why records are gone since the lane was read last, "" if none are, and lets it go on behind them.
// sums has the newest record that was read.
func (l *lane) checkPlace(sums map[string]uint32) (reason string) {
	sum, ok := sums[l.name()]
	switch {
	case l.Next > l.End, l.Last >= l.First && l.Last >= 0 && (!ok || sum != l.Sum):
		reason = l.name() + " is another one than before: it was made again, or an older copy was restored"
		l.isNew, l.Next = true, l.First
	case l.Next < l.First:
		reason = fmt.Sprintf("records %d to %d of %s were removed before they were read", l.Next, l.First-1, l.name())
		l.Next = l.First
	}
	if reason != "" {
		l.starts, l.Last = true, -1
	}
	l.read = l.Next
	return reason
}

// fill reads ahead in the lanes that have little left, so that each has a record or has been read to its end.
func (s *Source) fill(ctx context.Context) error {
	bound, most := maxAhead/len(s.lanes), max(maxAheadItems/len(s.lanes), minAheadItems)
	var spans []sinks.StoredSpan
	var of []*lane
	for _, l := range s.lanes {
		if l.read < l.End && len(l.ahead) < most/2 && l.bytes < bound/2+1 {
			spans, of = append(spans, sinks.StoredSpan{StoredLane: l.StoredLane, From: l.read, To: min(l.End, l.read+int64(most))}), append(of, l)
		}
	}
	err := s.Reader.ReadStored(ctx, spans, func(r sinks.StoredRecord) error {
		l := of[r.Lane]
		if l.full = l.full || l.bytes > bound && len(l.ahead) > 0; !l.full {
			l.add(r)
		}
		return nil
	})
	for i, l := range of {
		if !l.full && err == nil {
			l.read = spans[i].To
		}
		l.full = false
	}
	return err
}

func (l *lane) add(r sinks.StoredRecord) {
	it := item{position: r.Position, sum: crc32.ChecksumIEEE(r.Value), at: l.time()}
	if it.change, it.isRow = parse(r); it.change != nil {
		it.size = it.change.Size()
		if it.change.ObservedAt.After(it.at) {
			it.at = it.change.ObservedAt
		}
	}
	l.ahead, l.bytes, l.read = append(l.ahead, it), l.bytes+it.size, r.Position+1
}

// next returns the lane with the record that comes next; nil if all were read to their ends.
func (s *Source) next(ctx context.Context) (first *lane, err error) {
	for again := true; again; {
		again = false
		for _, l := range s.lanes {
			again = again || len(l.ahead) == 0 && l.read < l.End
		}
		if again {
			if err := s.fill(ctx); err != nil {
				return nil, err
			}
		}
	}
	for _, l := range s.lanes {
		if len(l.ahead) > 0 && (first == nil || l.ahead[0].compare(&first.ahead[0]) < 0) {
			first = l
		}
	}
	return first, nil
}

// compare orders records by when they were observed. The begin of a snapshot and a gap come before what they are about.
func (i *item) compare(o *item) int {
	return cmp.Or(i.at.Compare(o.at), cmp.Compare(i.rank(), o.rank()))
}

func (i *item) rank() int {
	switch {
	case i.change == nil:
		return 1
	case i.change.Type == event.SnapshotBegin, i.change.Type == event.Gap:
		return 0
	case i.change.Type == event.SnapshotEnd:
		return 2
	}
	return 1
}

// take removes the first record that was read ahead.
func (l *lane) take() item {
	it := l.ahead[0]
	l.ahead[0] = item{}
	if l.ahead = l.ahead[1:]; len(l.ahead) == 0 {
		l.ahead = nil
	}
	l.bytes -= it.size
	l.Next, l.Last, l.Sum, l.Time = it.position+1, it.position, it.sum, it.at
	return it
}
