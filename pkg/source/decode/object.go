package decode

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cespare/xxhash/v2"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// newObject makes an object from b and the result of its scan. It copies what it keeps: the caller reuses b for the next
// event. typeMeta is inserted into objects without kind, as the items of lists are; it is empty or ends in a comma, which is
// valid because every named object has further members.
func newObject(b []byte, f *fields, typeMeta string) (*deltas.Object, error) {
	text := newSharedText(b, f)
	namespace, name := text.nextText(f.namespace), text.nextText(f.name)
	o := deltas.NewObject(namespace, name)
	o.UID = text.nextText(f.uid)
	o.ResourceVersion = text.nextText(f.resourceVersion)
	o.Summary, o.Names = text.nextBytes(text.summary), text.all[text.next:]
	if err := setGeneration(o, f.generation.bytesOf(b)); err != nil {
		return nil, err
	}
	if f.kind.isPresent() {
		typeMeta = ""
	}
	o.Raw = withoutCuts(b, &f.cuts, typeMeta)
	o.Stamp = f.stampOf(b)
	o.ObservedAt = time.Now().UTC()
	setTimes(o, b, f)
	// Only a bookmark has no name, so the annotations of ordinary objects are not searched.
	o.InitialEventsEnd = name == "" && endsInitialEvents(f.annotations.bytesOf(b))
	return o, nil
}

func setGeneration(o *deltas.Object, number []byte) error {
	if len(number) == 0 || string(number) == "null" {
		return nil
	}
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return fmt.Errorf("metadata.generation of %s is not an integer: %q", o.Key(), number)
	}
	o.Generation = n
	return nil
}

// setTimes sets the times that the API server wrote. Others than those it writes are none.
func setTimes(o *deltas.Object, b []byte, f *fields) {
	o.CreatedAt, o.DeletingAt = secondsOf(f.created.bytesOf(b)), secondsOf(f.deleting.bytesOf(b))
	if grace, err := strconv.ParseInt(string(f.grace.bytesOf(b)), 10, 64); err == nil && o.DeletingAt != 0 {
		o.DeletingAt = max(o.DeletingAt-max(grace, 0), 0)
	}
}

// secondsOf returns a quoted time in Unix seconds; 0 for anything else.
func secondsOf(quoted []byte) int64 {
	var t time.Time
	if len(quoted) < 2 || quoted[0] != '"' || t.UnmarshalText(quoted[1:len(quoted)-1]) != nil {
		return 0
	}
	return max(t.Unix(), 0)
}

// stampOf returns the stamp of the object; nil if it has none that can be read.
func (f *fields) stampOf(b []byte) *event.Stamp {
	if !f.stamp.isPresent() {
		return nil
	}
	stamp, ok := event.ParseStamp(string(rawjson.Unquote(f.stamp.withQuotes().bytesOf(b))))
	if !ok {
		return nil
	}
	return &stamp
}

// withoutCuts copies b without cuts, into a slice of the exact length, because most of these bytes live until every sink has
// acknowledged them.
func withoutCuts(b []byte, c *cuts, typeMeta string) []byte {
	out := make([]byte, 0, len(b)-c.size()+len(typeMeta))
	if typeMeta == "" {
		return c.appendWithout(out, b, 0, len(b))
	}
	first := rawjson.SkipSpace(b, 0) + 1 // after the opening brace
	return c.appendWithout(append(append(out, b[:first]...), typeMeta...), b, first, len(b))
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

// sharedText holds the strings of one object in a single string: one allocation for data with the same lifetime.
type sharedText struct {
	b       []byte
	all     string
	summary int // length of the summary
	next    int
}

func newSharedText(b []byte, f *fields) sharedText {
	var scratch [1024]byte
	all := scratch[:0]
	for _, s := range [...]span{f.namespace, f.name, f.uid, f.resourceVersion} {
		all = append(all, s.bytesOf(b)...)
	}
	identity := len(all)
	all = deltas.AppendParts(all, f.parts)
	for i := range f.writerCount {
		w := &f.writers[i]
		fields := w.fieldsV1.bytesOf(b)
		all = deltas.AppendWriter(all, w.identity, xxhash.Sum64(w.time.bytesOf(b)), xxhash.Sum64(fields), len(fields))
	}
	summary := len(all) - identity
	for i := range f.writerCount {
		w := &f.writers[i]
		all = deltas.AppendNames(all, w.manager.bytesOf(b), w.operation.bytesOf(b), w.subresource.bytesOf(b), w.time.bytesOf(b))
	}
	return sharedText{b: b, all: string(all), summary: summary}
}

func (t *sharedText) nextBytes(n int) string {
	t.next += n
	return t.all[t.next-n : t.next]
}

// nextText returns the next string, unescaped. Spans are passed in the order of newSharedText.
func (t *sharedText) nextText(s span) string {
	text := t.nextBytes(s.end - s.start)
	for i := range len(text) {
		if text[i] == '\\' {
			return string(rawjson.Unquote(s.withQuotes().bytesOf(t.b)))
		}
	}
	return text
}
