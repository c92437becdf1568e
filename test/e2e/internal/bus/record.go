package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/parts/schemas"
)

// Object names one Kubernetes object. For a control record Name is empty, and Namespace unless it speaks of one.
type Object struct {
	Group, Resource, Namespace, Name string
}

func (o Object) String() string {
	resource := o.Resource
	if o.Group != "" {
		resource += "." + o.Group
	}
	return resource + " " + o.Namespace + "/" + o.Name
}

// Gap is the member of the same name, see docs/events.md.
type Gap struct {
	From, To, Reason string
}

// Snapshot is the member of the same name, see docs/events.md.
type Snapshot struct {
	ID, Position string
	Count        int
	Digest       string
}

// Watermark is the member of the same name, see docs/watermarks.md.
type Watermark struct {
	Epoch       string
	Sequence    uint64
	Lane, Lanes int
	Algorithm   string
	Count       int
	Digest      string
}

// Replay is the member of the same name, see docs/events.md.
type Replay struct {
	ID, Of, Type, State, Reason string
	Count                       int
}

// Record is one change as it lies on a bus; see docs/events.md for the members.
type Record struct {
	Object
	ID, Type, Cluster  string
	Version, Kind      string
	UID                string
	ResourceVersion    string
	ListVersion        string
	Coalesced          bool
	FinalStateUnknown  bool
	Left               bool
	Gap                *Gap
	Snapshot           *Snapshot
	Watermark          *Watermark
	Replay             *Replay
	Before, After      json.RawMessage
	Revision           int64     // ResourceVersion as a number
	Place              string    // topic and partition, or subject
	Key                string    // the Kafka record's key, the NATS message's Kubecdc-Key
	DuplicateDetection string    // what the bus drops duplicates by: Nats-Msg-Id; empty on Kafka
	Payload            []byte    // all of it, as it lies there
	Appended           time.Time // when the bus stored it, by its clock; zero on NATS
}

// Reader reads one bus. It is used by one goroutine at a time.
type Reader interface {
	// Name returns which bus this is, for messages.
	Name() string
	// Read returns what came since the last Read, up to the end that the bus has now, each object's records in the order
	// they lie there. After an error, which is usual while the bus is away, the next Read goes on where this one got;
	// records that were read before the error are returned with it.
	Read(ctx context.Context) ([]Record, error)
	// Close ends the connection.
	Close()
}

// Unwrap takes what lies on a bus, with its headers, apart: the native object and the object's key. No payload means that it
// adds nothing and is skipped, as a tombstone behind a delete is.
type Unwrap func(headers map[string]string, value []byte) (payload []byte, key string, err error)

// Form is how records are read. Its zero value is the native format.
type Form struct {
	Format format.Format // every value is held to its schema
	Unwrap Unwrap        // nil for the native format
}

// read reads what lies on a bus. Without an unwrap it is the native object, under the key that the bus has for it. more is
// false for what is passed over.
func (f Form) read(place, key string, headers map[string]string, value []byte) (r Record, more bool, err error) {
	defer func() { err = wrong(err) }()
	if err := schemas.Check(f.Format, value); err != nil {
		return Record{}, false, fmt.Errorf("%s: %w", place, err)
	}
	if f.Unwrap == nil {
		r, err = parse(place, key, value)
		return r, true, err
	}
	payload, inner, err := f.Unwrap(headers, value)
	if err != nil {
		return Record{}, false, fmt.Errorf("%s: %w: %.200s", place, err, value)
	}
	if payload == nil {
		return Record{}, false, nil
	}
	if key != "" && inner != key {
		return Record{}, false, fmt.Errorf("%s: a message of %q has the key %q", place, inner, key)
	}
	r, err = parse(place, inner, payload)
	return r, true, err
}

// WrongError reports a record that a bus should not hold. Any other error of a Read means that the bus does not answer now.
type WrongError struct{ error }

func wrong(err error) error {
	if err == nil {
		return nil
	}
	return &WrongError{err}
}

// parse reads a payload. That it cannot be read is a finding, not something to skip.
func parse(place, key string, payload []byte) (Record, error) {
	r := Record{Place: place, Key: key, Payload: payload}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, fmt.Errorf("%s holds what is no event: %w: %.200s", place, err, payload)
	}
	if r.ResourceVersion == "" && r.Name == "" { // a control record that is at no position
		return r, nil
	}
	var err error
	if r.Revision, err = strconv.ParseInt(r.ResourceVersion, 10, 64); err != nil {
		return r, fmt.Errorf("%s: event %s: resourceVersion: %w", place, r.ID, err)
	}
	return r, nil
}
