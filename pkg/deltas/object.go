package deltas

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Object is one API object as the API server wrote it: the identity every stage needs, and the bytes. It satisfies
// runtime.Object and metav1.Object as far as client-go's Reflector, DeltaFIFO and stores ask, so that they carry bytes
// instead of decoded maps. Objects are immutable once made and may be shared between goroutines.
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

var (
	_ runtime.Object = (*Object)(nil)
	_ metav1.Object  = (*Object)(nil)
)

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

// identity returns what tells the object from others, without its body and what was read off it. Its strings are its own:
// those of an object are parts of one, and a list of identities must not hold on to that of each.
func (o *Object) identity() *Object {
	text := o.key + o.UID + o.ResourceVersion
	take := func(n int) (s string) {
		s, text = text[:n], text[n:]
		return s
	}
	key := take(len(o.key))
	return &Object{
		Namespace: key[:len(o.Namespace)], Name: key[len(key)-len(o.Name):], key: key,
		UID: take(len(o.UID)), ResourceVersion: take(len(o.ResourceVersion)), ObservedAt: o.ObservedAt,
	}
}

// known is what is known once the object has been told.
func (o *Object) known() event.Known {
	return event.Known{Key: o.key, UID: o.UID, ResourceVersion: o.ResourceVersion, Summary: o.Summary}
}

// is says that the object is in the state that is known of it.
func (o *Object) is(known event.Known) bool {
	return !known.Gone && known.UID == o.UID && known.ResourceVersion == o.ResourceVersion && known.UID != ""
}

// KeyOf is the key function of queues and stores that carry objects.
func KeyOf(obj any) (string, error) {
	if k, ok := obj.(interface{ Key() string }); ok {
		return k.Key(), nil
	}
	return "", fmt.Errorf("deltas: %T carries no object", obj)
}

// GetObjectKind satisfies runtime.Object. The kind stays in the bytes; what handles an object knows its resource.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the object itself: it is immutable.
func (o *Object) DeepCopyObject() runtime.Object { return o }

// GetNamespace, GetName, GetUID, GetResourceVersion and GetGeneration return the identity.
func (o *Object) GetNamespace() string       { return o.Namespace }
func (o *Object) GetName() string            { return o.Name }
func (o *Object) GetUID() types.UID          { return types.UID(o.UID) }
func (o *Object) GetResourceVersion() string { return o.ResourceVersion }
func (o *Object) GetGeneration() int64       { return o.Generation }

// GetAnnotations tells the Reflector of the end of initial events; other annotations stay in the bytes.
func (o *Object) GetAnnotations() map[string]string {
	if o.InitialEventsEnd {
		return map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return nil
}

// The rest of metav1.Object is not asked for by anything that carries an Object; the answers are those of an object
// that has none of it.

func (o *Object) GetGenerateName() string                       { return "" }
func (o *Object) GetSelfLink() string                           { return "" }
func (o *Object) GetCreationTimestamp() metav1.Time             { return metav1.Time{} }
func (o *Object) GetDeletionTimestamp() *metav1.Time            { return nil }
func (o *Object) GetDeletionGracePeriodSeconds() *int64         { return nil }
func (o *Object) GetLabels() map[string]string                  { return nil }
func (o *Object) GetFinalizers() []string                       { return nil }
func (o *Object) GetOwnerReferences() []metav1.OwnerReference   { return nil }
func (o *Object) GetManagedFields() []metav1.ManagedFieldsEntry { return nil }

func (o *Object) SetNamespace(string)                          { readOnly() }
func (o *Object) SetName(string)                               { readOnly() }
func (o *Object) SetGenerateName(string)                       { readOnly() }
func (o *Object) SetUID(types.UID)                             { readOnly() }
func (o *Object) SetResourceVersion(string)                    { readOnly() }
func (o *Object) SetGeneration(int64)                          { readOnly() }
func (o *Object) SetSelfLink(string)                           { readOnly() }
func (o *Object) SetCreationTimestamp(metav1.Time)             { readOnly() }
func (o *Object) SetDeletionTimestamp(*metav1.Time)            { readOnly() }
func (o *Object) SetDeletionGracePeriodSeconds(*int64)         { readOnly() }
func (o *Object) SetLabels(map[string]string)                  { readOnly() }
func (o *Object) SetAnnotations(map[string]string)             { readOnly() }
func (o *Object) SetFinalizers([]string)                       { readOnly() }
func (o *Object) SetOwnerReferences([]metav1.OwnerReference)   { readOnly() }
func (o *Object) SetManagedFields([]metav1.ManagedFieldsEntry) { readOnly() }

func readOnly() { panic("deltas: an Object is immutable") }
