package replay

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

// history is the complete history of one resource. It is immutable.
type history struct {
	resource corpus.Resource
	before   state // until the start
	after    state // from the start on
	rvs      []uint64
	frames   [][]byte // of the change with the resourceVersion at the same index
}

// state is what exists at a moment.
type state struct {
	rv      uint64   // of the whole cluster at that moment
	objects [][]byte // JSON, by namespace and name as in a real list
}

// newHistory renders a resource.
func newHistory(c *corpus.Corpus, resource corpus.Resource) *history {
	h := &history{resource: resource}
	h.before.rv = c.Initial()[len(c.Initial())-1].RV
	h.after.rv = h.before.rv
	if n := len(c.Changes()); n > 0 {
		h.after.rv = c.Changes()[n-1].RV
	}
	living := map[int][]byte{} // by object
	var scratch []byte
	for _, e := range c.Initial() {
		if e.Resource == resource {
			scratch = c.AppendObject(scratch[:0], e)
			living[e.Object] = bytes.Clone(scratch)
		}
	}
	h.before.objects = inOrder(c, living)
	for _, e := range c.Changes() {
		if e.Resource != resource {
			continue
		}
		scratch = c.AppendFrame(scratch[:0], e)
		frame := bytes.Clone(scratch)
		h.rvs, h.frames = append(h.rvs, e.RV), append(h.frames, frame)
		if e.Type == corpus.Deleted {
			delete(living, e.Object)
		} else {
			living[e.Object] = frame[len(frameHead(e.Type)) : len(frame)-len(frameTail)]
		}
	}
	h.after.objects = inOrder(c, living)
	return h
}

// inOrder sorts objects as etcd's keys sort.
func inOrder(c *corpus.Corpus, living map[int][]byte) [][]byte {
	type named struct {
		key    string
		object []byte
	}
	all := make([]named, 0, len(living))
	for object, text := range living {
		all = append(all, named{c.Key(object), text})
	}
	slices.SortFunc(all, func(a, b named) int { return strings.Compare(a.key, b.key) })
	objects := make([][]byte, len(all))
	for i, n := range all {
		objects[i] = n.object
	}
	return objects
}

// since returns the frames of the changes behind a resourceVersion.
func (h *history) since(rv uint64) [][]byte {
	i, found := slices.BinarySearchFunc(h.rvs, rv, cmp.Compare[uint64])
	if found {
		i++
	}
	return h.frames[i:]
}

const frameTail = "}\n"

func frameHead(t corpus.Type) string { return `{"type":"` + t.String() + `","object":` }

// listItem returns an object as it stands in a list: without kind and apiVersion, which a typed list does not repeat.
func (h *history) listItem(object []byte) []byte {
	head := `{"kind":"` + h.resource.Kind() + `","apiVersion":"v1",`
	return object[len(head):] // without the opening brace
}

// bookmark returns the frame of a bookmark.
func (h *history) bookmark(rv uint64, initialEventsEnd bool) []byte {
	b := append([]byte(`{"type":"BOOKMARK","object":{"kind":"`), h.resource.Kind()...)
	b = append(b, `","apiVersion":"v1","metadata":{"resourceVersion":"`...)
	b = append(strconv.AppendUint(b, rv, 10), '"')
	if initialEventsEnd {
		b = append(b, `,"annotations":{"k8s.io/initial-events-end":"true"}`...)
	}
	b = append(b, `,"creationTimestamp":null}`...)
	if h.resource == corpus.Pods {
		b = append(b, `,"spec":{"containers":null},"status":{}`...)
	} else {
		b = append(b, `,"involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null,"reportingComponent":"","reportingInstance":""`...)
	}
	return append(b, "}}\n"...)
}
