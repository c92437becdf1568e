package corpus

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func make1000(t *testing.T, changes int, seed uint64) *Corpus {
	t.Helper()
	c, err := New(Options{Objects: 1000, Changes: changes, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestObjectsHaveTheSizesTheyAreSaidToHave(t *testing.T) {
	c := make1000(t, 0, 1)
	sum, n := map[family]int{}, map[family]int{}
	for _, e := range c.Initial() {
		f := c.objects[e.Object].family
		sum[f] += len(c.AppendObject(nil, e))
		n[f]++
	}
	for f, want := range map[family]int{smallPod: 4_800, largePod: 14_400, eventObject: 1_300} {
		if got := sum[f] / n[f]; got < want*95/100 || got > want*105/100 {
			t.Errorf("family %d: %d bytes on average, want %d within 5%%", f, got, want)
		}
	}
}

func TestEveryFrameIsOneLineWithAValidObject(t *testing.T) {
	c := make1000(t, 3000, 2)
	for _, e := range c.Entries() {
		line := c.AppendFrame(nil, e)
		if bytes.IndexByte(line, '\n') != len(line)-1 {
			t.Fatalf("not one line: %q", line)
		}
		for _, token := range tokens {
			if bytes.Contains(line, []byte(token)) {
				t.Fatalf("token %s is left in %s", token, line)
			}
		}
		var frame struct {
			Type   string
			Object json.RawMessage
		}
		if err := json.Unmarshal(line, &frame); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		checkObject(t, c, e, frame.Object)
		if frame.Type != e.Type.String() {
			t.Fatalf("type %s, want %s", frame.Type, e.Type)
		}
	}
}

func checkObject(t *testing.T, c *Corpus, e Entry, text []byte) {
	t.Helper()
	var pod corev1.Pod // its metadata is that of an Event, too
	var event corev1.Event
	var err error
	if e.Resource == Pods {
		err = json.Unmarshal(text, &pod)
	} else {
		err = json.Unmarshal(text, &event)
		pod.ObjectMeta, pod.TypeMeta = event.ObjectMeta, event.TypeMeta
	}
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	key := e.Resource.String() + "/" + pod.Namespace + "/" + pod.Name
	if pod.Kind != e.Resource.Kind() || key != c.Key(e.Object) || string(pod.UID) != c.UID(e.Object) || pod.ResourceVersion != strconv.FormatUint(e.RV, 10) {
		t.Fatalf("entry %+v is rendered as %s %s %s %s", e, pod.Kind, key, pod.UID, pod.ResourceVersion)
	}
	if len(pod.ManagedFields) == 0 || pod.ManagedFields[0].FieldsV1 == nil {
		t.Fatalf("no managedFields: %s", text)
	}
}

func TestHistoryIsPossible(t *testing.T) {
	c := make1000(t, 20_000, 3)
	alive := map[string]int{} // object by key
	counts := map[Type]int{}
	for i, e := range c.Entries() {
		key := c.Key(e.Object)
		object, exists := alive[key]
		switch {
		case e.Type == Added && exists:
			t.Fatalf("%s is created while it exists", key)
		case e.Type != Added && (!exists || object != e.Object):
			t.Fatalf("%s: %s of what does not exist", key, e.Type)
		}
		alive[key] = e.Object
		if e.Type == Deleted {
			delete(alive, key)
		}
		if back, ok := c.ByRV(e.RV); !ok || back != e || c.Index(e.RV) != i {
			t.Fatalf("entry %d is not found by its resourceVersion", i)
		}
		if i >= len(c.Initial()) {
			counts[e.Type]++
		}
	}
	if counts[Modified] < 17_000 || counts[Added] < 500 || counts[Deleted] < 500 {
		t.Errorf("the mix is %v", counts)
	}
	if _, ok := c.ByRV(firstRV + uint64(len(c.Entries()))); ok {
		t.Error("a resourceVersion behind the end is known")
	}
}

func TestTheSameOptionsMakeTheSameBytes(t *testing.T) {
	sum := func(seed uint64) uint64 {
		c, h := make1000(t, 2000, seed), fnv.New64a()
		var frame []byte
		for _, e := range c.Entries() {
			frame = c.AppendFrame(frame[:0], e)
			_, _ = h.Write(frame) // a hash does not fail
		}
		return h.Sum64()
	}
	once, again := sum(4), sum(4)
	if once != again {
		t.Error("two corpora of the same options differ")
	}
	if once == sum(5) {
		t.Error("the seed changes nothing")
	}
}
