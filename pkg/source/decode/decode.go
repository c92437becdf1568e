package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Decoder reads what the API server says of one resource, without decoding objects. It is safe for concurrent use.
//
// It reads the form that kube-apiserver writes, one event a line, and looks out for others. When a second stream in a row
// begins with what it cannot read, events are found with the stock JSON code from the next stream on: about eight times
// slower, and right for every legal spelling. One failure alone is a broken connection.
type Decoder struct {
	resource            *event.Resource // whose objects these are
	typeMembers         string          // kind and apiVersion of these objects, as JSON members with a comma behind each
	metadataOnly        bool            // of each object the metadata alone is kept
	useStockJSON        atomic.Bool
	failed              atomic.Uint64
	consecutiveFailures atomic.Uint32 // failures since something was read
}

// New returns a decoder of objects of a resource. bare keeps the metadata of each object alone.
func New(r event.Resource, bare bool) *Decoder {
	apiVersion := schema.GroupVersion{Group: r.Group, Version: r.Version}.String()
	return &Decoder{resource: &r, metadataOnly: bare, typeMembers: fmt.Sprintf(`"kind":%q,"apiVersion":%q,`, r.Kind, apiVersion)}
}

// Failures is how many answers could not be read.
func (d *Decoder) Failures() uint64 { return d.failed.Load() }

// countFailure counts what could not be read. The text of a proxy's error page is no such thing.
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

// Object reads one object. It keeps nothing of b.
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
	o.Resource = d.resource
	return o, nil
}

// decodeEvent reads one event of a watch: {"type":"ADDED","object":{…}}. It keeps nothing of b. An ERROR event is an error.
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
		return e, d.countFailure(b, errors.New("a watch event of no known type"))
	}
	if typ == watch.Error {
		status := &metav1.Status{}
		if err := json.Unmarshal(object, status); err != nil {
			return e, d.countFailure(b, err)
		}
		if status.Message == "" {
			status.Message = fmt.Sprintf("the API server ended the watch with code %d and no message", status.Code)
		}
		return e, apierrors.FromObject(status)
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

// requireName refuses what has no name: it cannot be told from others, and nobody who reads the stream expects it.
func requireName(o *deltas.Object) error {
	if o.Name == "" {
		return errors.New("an object without metadata.name")
	}
	return nil
}

// splitEnvelope reads the exact form that kube-apiserver writes and says no to every other. What it takes for the object
// may have more behind it, if the envelope has more members; scan finds out, since it reads to the last byte.
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

// parseEventType is the known type of this name, and "" if there is none.
func parseEventType(b []byte) watch.EventType {
	for _, t := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted, watch.Bookmark, watch.Error} {
		if string(b) == string(t) {
			return t
		}
	}
	return ""
}

// Page reads one page of a list and gives each object to take as it comes, so that memory does not depend on how many
// there are, or how large the page is. It returns what the page says of itself.
func (d *Decoder) Page(r io.Reader, take func(*deltas.Object) error) (meta metav1.ListMeta, err error) {
	dec := json.NewDecoder(r)
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return meta, fmt.Errorf("the answer to a list is no object: %v %w", t, err)
	}
	for dec.More() {
		member, err := dec.Token()
		if err != nil {
			return meta, err
		}
		switch member {
		case "metadata":
			err = dec.Decode(&meta)
		case "items":
			err = d.decodeItems(dec, take)
		default:
			var passed json.RawMessage
			err = dec.Decode(&passed)
		}
		if err != nil {
			return meta, err
		}
	}
	_, err = dec.Token()
	return meta, err
}

// decodeItems reads the array of a page's objects; null stands for one without any.
func (d *Decoder) decodeItems(dec *json.Decoder, take func(*deltas.Object) error) error {
	if t, err := dec.Token(); err != nil || t == nil {
		return err
	} else if t != json.Delim('[') {
		return fmt.Errorf("the items of a list are %v, want an array", t)
	}
	var raw json.RawMessage
	for dec.More() {
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		o, err := d.Object(raw)
		if err == nil {
			err = requireName(o)
		}
		if err != nil {
			return d.countFailure(raw, err)
		}
		if err := take(o); err != nil {
			return err
		}
	}
	_, err := dec.Token()
	return err
}

// metadataBody is an object's type and its metadata without managedFields, in the form and order that the whole object has.
// Metadata comes as PartialObjectMetadata, whatever it is of, or in whole objects from an API server without that form.
func metadataBody(b []byte, f *fields, typeMembers string) []byte {
	const key = `"metadata":`
	out := make([]byte, 0, len(typeMembers)+len(key)+2+f.metadata.end-f.metadata.start)
	out = append(append(append(out, '{'), typeMembers...), key...)
	switch {
	case !f.metadata.isPresent():
		out = append(out, "{}"...)
	case f.managed.isPresent():
		out = append(append(out, b[f.metadata.start:f.managed.start]...), b[f.managed.end:f.metadata.end]...)
	default:
		out = append(out, f.metadata.bytesOf(b)...)
	}
	return append(out, '}')
}
