package deltas

import (
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Object is one API object as the API server wrote it: the identity every stage needs, and the bytes. Objects are immutable
// once made and may be shared between goroutines.
type Object struct {
	Namespace       string
	Name            string
	UID             string
	ResourceVersion string
	Generation      int64
	Summary         string // see AppendParts; empty when nothing is known of the object's state
	Names           string // of the entries in Summary, see AppendNames
	// Resource is in whose terms the bytes are; nil for that of the scope. They differ while the resource moves from one
	// version to another.
	Resource   *event.Resource
	Raw        []byte    // JSON without metadata.managedFields; nil on stubs made from known identities
	ObservedAt time.Time // when the bytes arrived; UTC
	// InitialEventsEnd marks the bookmark that ends a WatchList's initial events (KEP-3157).
	InitialEventsEnd bool

	key string
}

// NewObject returns an object with its key worked out. The caller sets the other fields before it shares the object.
func NewObject(namespace, name string) *Object {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	return &Object{Namespace: namespace, Name: name, key: key}
}

// Key is "namespace/name", or "name" for cluster-scoped objects: the key of DeltaFIFO and of event.Known.
func (o *Object) Key() string { return o.key }

// toKnown is what is known once the object has been emitted.
func (o *Object) toKnown() event.Known {
	return event.Known{Key: o.key, UID: o.UID, ResourceVersion: o.ResourceVersion, Summary: o.Summary}
}

// matchesKnown says that the object is in the state that is known of it.
func (o *Object) matchesKnown(known event.Known) bool {
	return known.UID == o.UID && known.ResourceVersion == o.ResourceVersion && known.UID != ""
}

// objectKey is the key function of DeltaFIFO.
func objectKey(obj any) (string, error) {
	if o, ok := obj.(*Object); ok {
		return o.Key(), nil
	}
	return "", fmt.Errorf("deltas: %T is no object", obj)
}
