package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// wire is a runtime.NegotiatedSerializer that lets client-go's own REST client, Reflector and queues carry bytes: what
// they call an object is a *deltas.Object, what they call a list a *list, and errors stay *metav1.Status.
//
// It reads the form that kube-apiserver writes and looks out for others. When a second connection in a row begins with
// what it cannot read, it frames with the stock JSON code from the next connection on: about eight times slower, and
// right for every legal spelling. One failure alone is a broken connection. One wire serves one scope, so only the type
// that needs it pays.
type wire struct {
	resource *event.Resource // whose objects these are; nil where nobody asks
	bare     string          // kind and apiVersion of objects of which the metadata alone is kept, as members; empty: all of it
	stock    atomic.Bool
	failed   atomic.Uint64
	inARow   atomic.Uint32 // failures since something was read
}

func newWire(s Scope) *wire {
	w := &wire{resource: &s.Resource}
	if s.MetadataOnly {
		w.bare = typeMembers(s.Resource)
	}
	return w
}

func (w *wire) fail(err error) error {
	w.failed.Add(1)
	if w.inARow.Add(1) == 2 {
		w.stock.Store(true)
	}
	return err
}

func (w *wire) succeed() {
	if w.inARow.Load() != 0 {
		w.inARow.Store(0)
	}
}

// SupportedMediaTypes offers JSON and, for metadata, protobuf. It is asked for every connection.
func (w *wire) SupportedMediaTypes() []runtime.SerializerInfo {
	var framer runtime.Framer = lineFramer{}
	if w.stock.Load() {
		framer = jsonserializer.Framer
	}
	all := []runtime.SerializerInfo{{
		MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
		Serializer: objectCodec{w},
		StreamSerializer: &runtime.StreamSerializerInfo{
			EncodesAsText: true, Serializer: envelopeCodec{w}, Framer: framer,
		},
	}}
	if w.bare != "" {
		all = append(all, protobufInfo(w))
	}
	return all
}

// EncoderForVersion and DecoderToVersion convert nothing: objects stay in the version they were asked for in.

func (w *wire) EncoderForVersion(e runtime.Encoder, _ runtime.GroupVersioner) runtime.Encoder {
	return e
}
func (w *wire) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return d
}

var errReadOnly = errors.New("source: nothing is ever written to the API server")

// list is a LIST answer, or one page of it.
type list struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*deltas.Object
}

// DeepCopyObject returns the list itself: nobody changes it.
func (l *list) DeepCopyObject() runtime.Object { return l }

// objectCodec reads an object, a list or a status.
type objectCodec struct{ w *wire }

func (objectCodec) Identifier() runtime.Identifier         { return "kubecdc" }
func (objectCodec) Encode(runtime.Object, io.Writer) error { return errReadOnly }

func (c objectCodec) Decode(b []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, err := c.w.decode(b)
	if err != nil {
		if start := rawjson.SkipSpace(b, 0); start < len(b) && b[start] == '{' { // else the text of a proxy's error page
			_ = c.w.fail(err)
		}
		return nil, nil, err
	}
	if _, ok := o.(*deltas.Object); ok { // lists and errors say nothing about streams
		c.w.succeed()
	}
	return o, nil, nil
}

func (w *wire) decode(b []byte) (runtime.Object, error) {
	var f fields
	if err := scan(b, &f); err != nil {
		return nil, err
	}
	kind := f.kind.of(b)
	switch {
	case string(kind) == "Status" && string(f.apiVersion.of(b)) == "v1":
		status := &metav1.Status{}
		if err := json.Unmarshal(b, status); err != nil {
			return nil, err
		}
		return status, nil
	case !f.name.present() && !f.uid.present() && f.items.present() && bytes.HasSuffix(kind, []byte("List")):
		return w.decodeList(b, &f)
	}
	return w.object(b, &f, "")
}

// object makes an object of what was scanned.
func (w *wire) object(b []byte, f *fields, typeMeta string) (*deltas.Object, error) {
	f.parts.Bare = w.bare != ""
	o, err := newObject(b, f, typeMeta)
	if err != nil {
		return nil, err
	}
	if w.bare != "" {
		o.Raw = bareBody(b, f, w.bare)
	}
	o.Resource = w.resource
	return o, nil
}

// decodeList reads a page. The items of built-in types name neither kind nor version; they get those of the list, so
// that an object has the same bytes however it was read.
func (w *wire) decodeList(b []byte, f *fields) (*list, error) {
	l := &list{}
	l.Kind, l.APIVersion = string(f.kind.of(b)), string(f.apiVersion.of(b))
	if f.metadata.present() {
		if err := json.Unmarshal(f.metadata.of(b), &l.ListMeta); err != nil {
			return nil, err
		}
	}
	if b[f.items.start] != '[' { // null
		return l, nil
	}
	typeMeta := fmt.Sprintf(`"kind":%q,"apiVersion":%q,`, strings.TrimSuffix(l.Kind, "List"), l.APIVersion)
	return l, eachItem(f.items.of(b), func(item []byte) error {
		var f fields
		if err := scan(item, &f); err != nil {
			return err
		}
		o, err := w.object(item, &f, typeMeta)
		l.Items = append(l.Items, o)
		return err
	})
}

// eachItem gives the elements of a JSON array.
func eachItem(array []byte, take func([]byte) error) error {
	e := rawjson.EnterArray(array, 0)
	for e.Next() {
		start := e.I
		if e.I = rawjson.PassValue(array, start); e.I < 0 {
			break
		}
		if err := take(array[start:e.I]); err != nil {
			return err
		}
	}
	if e.I < 0 {
		return &malformedError{offset: rawjson.Fail(e.I), size: len(array)}
	}
	return nil
}

// envelopeCodec reads {"type":"ADDED","object":{…}} into a *metav1.WatchEvent whose object is a part of the bytes
// given, not a copy: objectCodec copies what stays.
type envelopeCodec struct{ w *wire }

func (envelopeCodec) Identifier() runtime.Identifier         { return "kubecdc-watch" }
func (envelopeCodec) Encode(runtime.Object, io.Writer) error { return errReadOnly }

func (c envelopeCodec) Decode(b []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	event, ok := into.(*metav1.WatchEvent)
	if !ok {
		return nil, nil, fmt.Errorf("source: a watch event goes into %T, want *metav1.WatchEvent", into)
	}
	if !openEnvelope(b, event) {
		if err := json.Unmarshal(b, event); err != nil {
			return nil, nil, c.w.fail(err)
		}
	}
	return event, nil, nil
}

// openEnvelope reads the exact form that kube-apiserver writes and says no to every other. What it takes for the object
// may have more behind it, if the envelope has more members; objectCodec finds out, since it reads to the last byte.
func openEnvelope(b []byte, event *metav1.WatchEvent) bool {
	const head, middle = `{"type":"`, `","object":`
	if !bytes.HasPrefix(b, []byte(head)) {
		return false
	}
	end := bytes.IndexByte(b[len(head):], '"')
	if end < 0 || !bytes.HasPrefix(b[len(head)+end:], []byte(middle)) {
		return false
	}
	object := bytes.TrimRight(b[len(head)+end+len(middle):], " \t\r\n")
	if len(object) < 2 || object[len(object)-1] != '}' {
		return false
	}
	event.Type = eventType(b[len(head) : len(head)+end])
	event.Object.Raw = object[:len(object)-1]
	return true
}

// eventType spares an allocation for each event of a known type.
func eventType(b []byte) string {
	for _, t := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted, watch.Bookmark, watch.Error} {
		if string(b) == string(t) {
			return string(t)
		}
	}
	return string(b)
}
