package deltas

import (
	"fmt"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Object is one API object as the API server sent it: its identity and the bytes. Objects are immutable once shared and may
// be used by several goroutines.
type Object struct {
	Namespace       string
	Name            string
	UID             string
	ResourceVersion string
	Generation      int64
	Summary         string       // see AppendParts; "" if the state is not known
	Names           string       // of the writers in Summary, see AppendNames
	Raw             []byte       // JSON without metadata.managedFields and the stamp; nil for stubs of known identities
	Stamp           *event.Stamp // as the object has it, of this write or an earlier one; nil if it has none
	ObservedAt      time.Time    // when the bytes arrived; UTC
	CreatedAt       int64        // metadata.creationTimestamp in Unix seconds; 0 if there is none, as in DeletingAt
	DeletingAt      int64        // when the deletion was requested: metadata.deletionTimestamp without the grace period
	// InitialEventsEnd marks the bookmark that ends a WatchList's initial events (KEP-3157).
	InitialEventsEnd bool

	key string
}

// NewObject returns an object with its key set. The caller sets the other fields before sharing the object.
func NewObject(namespace, name string) *Object {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	return &Object{Namespace: namespace, Name: name, key: key}
}

// Key returns "namespace/name", or "name" for cluster-scoped objects. It is the key in DeltaFIFO and in event.Known.
func (o *Object) Key() string { return o.key }

// LastWrite returns when the object was last written as a whole, by its managed fields: writes of a subresource, such as
// that of the status, leave labels and annotations as they are. "" if that is not known.
func (o *Object) LastWrite() (last string) {
	if o.Summary == "" || hasTruncatedWriters(o.Summary) {
		return ""
	}
	for names := o.Names; names != ""; {
		var entry [4]string // see AppendNames
		for i := range entry {
			entry[i], names, _ = strings.Cut(names, "\x00")
		}
		if entry[2] == "" {
			last = max(last, entry[3])
		}
	}
	return last
}

// toKnown returns what is known of the object once it has been emitted.
func (o *Object) toKnown() event.Known {
	return event.Known{Key: o.key, UID: o.UID, ResourceVersion: o.ResourceVersion, Summary: o.Summary}
}

// matchesKnown reports whether the object is in the known version.
func (o *Object) matchesKnown(known event.Known) bool {
	return known.UID == o.UID && known.ResourceVersion == o.ResourceVersion && known.UID != ""
}

// objectKey is the key function of DeltaFIFO.
func objectKey(obj any) (string, error) {
	if o, ok := obj.(*Object); ok {
		return o.Key(), nil
	}
	return "", fmt.Errorf("deltas: %T is not an object", obj)
}
