package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Decoder reads the responses about one resource without unmarshaling objects. It is safe for concurrent use.
//
// It expects the form that kube-apiserver writes, one event per line. When two consecutive streams begin with data it cannot
// read, later streams are split by encoding/json, which is about eight times slower and accepts every legal spelling. A
// single failure is a broken connection.
type Decoder struct {
	typeMembers         string // kind and apiVersion of the objects, as JSON members, each with a trailing comma
	metadataOnly        bool   // keep only the metadata of each object
	useStockJSON        atomic.Bool
	failed              atomic.Uint64
	consecutiveFailures atomic.Uint32 // failures since the last success
}

// New returns a decoder for objects of a resource. If metadataOnly, it keeps only the metadata of each object.
func New(r event.Resource, metadataOnly bool) *Decoder {
	apiVersion := schema.GroupVersion{Group: r.Group, Version: r.Version}.String()
	return &Decoder{metadataOnly: metadataOnly, typeMembers: fmt.Sprintf(`"kind":%q,"apiVersion":%q,`, r.Kind, apiVersion)}
}

// Failures returns the number of unparseable responses.
func (d *Decoder) Failures() uint64 { return d.failed.Load() }

// countFailure counts an unparseable response. The text of a proxy's error page does not count.
func (d *Decoder) countFailure(b []byte, err error) error {
	if start := rawjson.SkipSpace(b, 0); start == len(b) || b[start] != '{' {
		return err
	}
	d.failed.Add(1)
	if d.consecutiveFailures.Add(1) == 2 {
		d.useStockJSON.Store(true)
	}
	return err
}

func (d *Decoder) resetFailures() {
	if d.consecutiveFailures.Load() != 0 {
		d.consecutiveFailures.Store(0)
	}
}

// Object reads one object. It copies what it keeps of b.
func (d *Decoder) Object(b []byte) (*deltas.Object, error) {
	var f fields
	if err := scanDocument(b, &f); err != nil {
		return nil, err
	}
	f.parts.MetadataOnly = d.metadataOnly
	o, err := newObject(b, &f, d.typeMembers)
	if err != nil {
		return nil, err
	}
	if d.metadataOnly {
		o.Raw = metadataBody(b, &f, d.typeMembers)
	}
	return o, nil
}

// decodeEvent reads one watch event: {"type":"ADDED","object":{…}}. It copies what it keeps of b. An ERROR event is returned
// as an error.
func (d *Decoder) decodeEvent(b []byte) (e deltas.Event, err error) {
	typ, object, ok := splitEnvelope(b)
	if !ok {
		var w metav1.WatchEvent
		if err := json.Unmarshal(b, &w); err != nil {
			return e, d.countFailure(b, err)
		}
		typ, object = parseEventType([]byte(w.Type)), w.Object.Raw
	}
	if typ == "" {
		return e, d.countFailure(b, errors.New("a watch event of unknown type"))
	}
	if typ == watch.Error {
		status := &metav1.Status{}
		if json.Unmarshal(object, status) != nil {
			return e, d.countFailure(b, errors.New("an ERROR event of a watch without a Status"))
		}
		return e, apierrors.FromObject(KnownStatus(status))
	}
	o, err := d.Object(object)
	if err == nil && typ != watch.Bookmark {
		err = requireName(o)
	}
	if err != nil {
		return e, d.countFailure(b, err)
	}
	d.resetFailures()
	return deltas.Event{Type: typ, Object: o}, nil
}

// requireName rejects an object without a name: it has no identity.
func requireName(o *deltas.Object) error {
	if o.Name == "" {
		return errors.New("an object without metadata.name")
	}
	return nil
}

// splitEnvelope splits an event in the exact form that kube-apiserver writes; ok is false for any other form. If the
// envelope has further members, object includes them; scanDocument, which reads to the last byte, then fails.
func splitEnvelope(b []byte) (typ watch.EventType, object []byte, ok bool) {
	const head, middle = `{"type":"`, `","object":`
	if !bytes.HasPrefix(b, []byte(head)) {
		return "", nil, false
	}
	end := bytes.IndexByte(b[len(head):], '"')
	if end < 0 || !bytes.HasPrefix(b[len(head)+end:], []byte(middle)) {
		return "", nil, false
	}
	object = bytes.TrimRight(b[len(head)+end+len(middle):], " \t\r\n")
	if len(object) < 2 || object[len(object)-1] != '}' {
		return "", nil, false
	}
	return parseEventType(b[len(head) : len(head)+end]), object[:len(object)-1], true
}

// parseEventType returns the event type of this name, or "".
func parseEventType(b []byte) watch.EventType {
	for _, t := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted, watch.Bookmark, watch.Error} {
		if string(b) == string(t) {
			return t
		}
	}
	return ""
}

// metadataBody returns the type and the metadata of an object without managedFields and stamp, in the form and order of the
// whole object. The input is a PartialObjectMetadata, or a whole object from an API server that does not support that form.
func metadataBody(b []byte, f *fields, typeMembers string) []byte {
	const key = `"metadata":`
	out := make([]byte, 0, len(typeMembers)+len(key)+2+f.metadata.end-f.metadata.start)
	out = append(append(append(out, '{'), typeMembers...), key...)
	if f.metadata.isPresent() {
		out = f.cuts.appendWithout(out, b, f.metadata.start, f.metadata.end)
	} else {
		out = append(out, "{}"...)
	}
	return append(out, '}')
}
