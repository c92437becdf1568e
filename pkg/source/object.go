package source

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// newObject makes an object of the bytes that f was scanned from. It copies what it keeps: b belongs to the caller, who
// reuses it for the next event. typeMeta is put in front of objects that say neither kind nor version, as the items of
// lists do; it is empty or ends in a comma.
func newObject(b []byte, f *fields, typeMeta string) (*deltas.Object, error) {
	text := newTexts(b, f)
	namespace, name := text.take(f.namespace), text.take(f.name)
	o := deltas.NewObject(namespace, name)
	o.UID = text.take(f.uid)
	o.ResourceVersion = text.take(f.resourceVersion)
	if f.newest.found {
		o.Actor = &event.Actor{
			Manager:     text.take(f.newest.manager),
			Operation:   text.take(f.newest.operation),
			Subresource: text.take(f.newest.subresource),
			Time:        text.take(f.newest.time),
		}
	}
	if err := setGeneration(o, f.generation.of(b)); err != nil {
		return nil, err
	}
	if f.kind.present() {
		typeMeta = ""
	}
	o.Raw = withoutManaged(b, f.managed, typeMeta)
	o.ObservedAt = time.Now().UTC()
	// Only a bookmark has no name, so ordinary objects never pay for a look at their annotations.
	o.InitialEventsEnd = name == "" && endsInitialEvents(f.annotations.of(b))
	return o, nil
}

func setGeneration(o *deltas.Object, number []byte) error {
	if len(number) == 0 || string(number) == "null" {
		return nil
	}
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return fmt.Errorf("metadata.generation of %s is no integer: %q", o.Key(), number)
	}
	o.Generation = n
	return nil
}

// withoutManaged copies b without the cut, exactly as long as needed, because most of these bytes live until every sink
// has them.
func withoutManaged(b []byte, cut span, typeMeta string) []byte {
	out := make([]byte, 0, len(b)-(cut.end-cut.start)+len(typeMeta))
	if typeMeta == "" {
		return append(append(out, b[:cut.start]...), b[cut.end:]...)
	}
	first := skipSpace(b, 0) + 1 // behind the opening brace
	if next := skipSpace(b, first); b[next] == '}' {
		typeMeta = strings.TrimSuffix(typeMeta, ",")
	}
	out = append(append(out, b[:first]...), typeMeta...)
	if !cut.present() {
		return append(out, b[first:]...)
	}
	return append(append(out, b[first:cut.start]...), b[cut.end:]...)
}

func endsInitialEvents(annotations []byte) bool {
	i := bytes.Index(annotations, []byte(`"`+metav1.InitialEventsAnnotationKey+`"`))
	if i < 0 {
		return false
	}
	rest := annotations[i+len(metav1.InitialEventsAnnotationKey)+2:]
	rest = bytes.TrimLeft(rest, " \t\r\n:")
	return bytes.HasPrefix(rest, []byte(`"true"`))
}

// texts cuts the identity of one object out of a single string: one allocation for eight strings that live and die
// together.
type texts struct {
	b    []byte
	all  string
	next int
}

func newTexts(b []byte, f *fields) *texts {
	spans := [...]span{
		f.namespace, f.name, f.uid, f.resourceVersion,
		f.newest.manager, f.newest.operation, f.newest.subresource, f.newest.time,
	}
	var scratch [512]byte
	all := scratch[:0]
	for _, s := range spans {
		all = append(all, s.of(b)...)
	}
	return &texts{b: b, all: string(all)}
}

// take returns the text of the next span, in the order in which newTexts has them.
func (t *texts) take(s span) string {
	from := t.next
	t.next += s.end - s.start
	text := t.all[from:t.next]
	for i := range len(text) {
		if text[i] == '\\' {
			return string(unescape(s.quoted().of(t.b)))
		}
	}
	return text
}
