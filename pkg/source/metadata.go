package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// acceptMetadata asks for PartialObjectMetadata: as protobuf, which costs the API server least, else as JSON. An API
// server that has neither, as an aggregated one may, sends whole objects, and what is too much is left out here.
const acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// typeMembers are the members that say what an object of a resource is, each with a comma behind it. Metadata comes as
// PartialObjectMetadata whatever it is of.
func typeMembers(r event.Resource) string {
	apiVersion := schema.GroupVersion{Group: r.Group, Version: r.Version}.String()
	return fmt.Sprintf(`"kind":%q,"apiVersion":%q,`, r.Kind, apiVersion)
}

// bareBody is an object's type and its metadata without managedFields, in the form and order that the whole object has.
func bareBody(b []byte, f *fields, typeMembers string) []byte {
	const key = `"metadata":`
	out := make([]byte, 0, len(typeMembers)+len(key)+2+f.metadata.end-f.metadata.start)
	out = append(append(append(out, '{'), typeMembers...), key...)
	switch {
	case !f.metadata.present():
		out = append(out, "{}"...)
	case f.managed.present():
		out = append(append(out, b[f.metadata.start:f.managed.start]...), b[f.managed.end:f.metadata.end]...)
	default:
		out = append(out, f.metadata.of(b)...)
	}
	return append(out, '}')
}

func protobufInfo(w *wire) runtime.SerializerInfo {
	return runtime.SerializerInfo{
		MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
		Serializer: metadataCodec{w},
		StreamSerializer: &runtime.StreamSerializerInfo{
			Serializer: metadataEnvelope{w}, Framer: protobuf.LengthDelimitedFramer,
		},
	}
}

// protobufMagic is what every object in protobuf begins with; a runtime.Unknown follows.
var protobufMagic = []byte("k8s\x00")

// metadataCodec reads PartialObjectMetadata, lists of it, and a status. It goes by way of JSON, so that an object has the
// same bytes, digests and actors however it was read: that of metadata is short.
type metadataCodec struct{ w *wire }

func (metadataCodec) Identifier() runtime.Identifier         { return "kubecdc-metadata" }
func (metadataCodec) Encode(runtime.Object, io.Writer) error { return errReadOnly }

func (c metadataCodec) Decode(b []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, err := c.w.decodeProtobuf(b)
	if err != nil {
		return nil, nil, c.w.fail(err)
	}
	if _, ok := o.(*deltas.Object); ok {
		c.w.succeed()
	}
	return o, nil, nil
}

func (w *wire) decodeProtobuf(b []byte) (runtime.Object, error) {
	if !bytes.HasPrefix(b, protobufMagic) {
		return nil, errors.New("malformed protobuf: it does not begin as Kubernetes objects do")
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(b[len(protobufMagic):]); err != nil {
		return nil, fmt.Errorf("malformed protobuf: %w", err)
	}
	switch unknown.Kind {
	case "Status":
		status := &metav1.Status{}
		return status, status.Unmarshal(unknown.Raw)
	case "PartialObjectMetadata":
		var m metav1.PartialObjectMetadata
		if err := m.Unmarshal(unknown.Raw); err != nil {
			return nil, fmt.Errorf("malformed protobuf: %w", err)
		}
		return w.metadata(&m)
	case "PartialObjectMetadataList":
		var l metav1.PartialObjectMetadataList
		if err := l.Unmarshal(unknown.Raw); err != nil {
			return nil, fmt.Errorf("malformed protobuf: %w", err)
		}
		return w.metadataList(&l)
	}
	return nil, fmt.Errorf("protobuf of kind %q, which was not asked for", unknown.Kind)
}

func (w *wire) metadata(m *metav1.PartialObjectMetadata) (*deltas.Object, error) {
	b, err := json.Marshal(struct {
		Metadata *metav1.ObjectMeta `json:"metadata"`
	}{&m.ObjectMeta})
	if err != nil {
		return nil, err
	}
	var f fields
	if err := scan(b, &f); err != nil {
		return nil, err
	}
	return w.object(b, &f, "")
}

func (w *wire) metadataList(from *metav1.PartialObjectMetadataList) (*list, error) {
	l := &list{ListMeta: from.ListMeta}
	for i := range from.Items {
		o, err := w.metadata(&from.Items[i])
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, o)
	}
	return l, nil
}

// metadataEnvelope reads a watch event in protobuf.
type metadataEnvelope struct{ w *wire }

func (metadataEnvelope) Identifier() runtime.Identifier         { return "kubecdc-metadata-watch" }
func (metadataEnvelope) Encode(runtime.Object, io.Writer) error { return errReadOnly }

func (c metadataEnvelope) Decode(b []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	event, ok := into.(*metav1.WatchEvent)
	if !ok {
		return nil, nil, fmt.Errorf("source: a watch event goes into %T, want *metav1.WatchEvent", into)
	}
	if err := event.Unmarshal(b); err != nil {
		return nil, nil, c.w.fail(fmt.Errorf("malformed protobuf: %w", err))
	}
	return event, nil, nil
}
