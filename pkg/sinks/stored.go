package sinks

import "context"

// StoredLane is one ordered part of what a destination stores: a partition of a topic, or a stream.
type StoredLane struct {
	Target string // the topic or stream
	Index  int    // of the lane in the target, from 0
	Count  int    // of the target's lanes

	First, End int64 // position of the oldest record, and the one after the newest
	// Replaces reports whether a newer record of an object may remove an older one: compaction, or a limit by subject. It is
	// true if that cannot be found out.
	Replaces bool
	// Truncated reports whether records before First are gone, other than by replacement.
	Truncated bool
}

// StoredRecord is a record as a destination stores it. It is valid during the call that passes it.
type StoredRecord struct {
	Lane     int    // index of its span in the call of ReadStored
	Position int64  // in its lane
	Key      string // of the record, or its subject: with what a newer record takes its place
	Value    []byte
	Header   func(name string) string // by the names in package format; "" if there is none
	// RemovesUnnamed reports whether the record removes the value of a key, and does not name the object: as an operator or
	// a repair of a bucket does.
	RemovesUnnamed bool
}

// StoredSpan is a part of a lane: positions from From up to, and without, To.
type StoredSpan struct {
	StoredLane
	From, To int64
}

// StoredReader reads back what a destination stores, with connections of its own and without changing anything there.
type StoredReader interface {
	// StoredLanes returns the lanes of a topic, or of the stream.
	StoredLanes(ctx context.Context, target string) ([]StoredLane, error)

	// ReadStored passes the records of spans, those of one lane in order, to each, which is called once at a time. An error of
	// each ends the reading and is returned as it is. The position of a record that is gone is skipped.
	ReadStored(ctx context.Context, spans []StoredSpan, each func(StoredRecord) error) error

	// Close closes the connections within ctx.
	Close(ctx context.Context) error
}
