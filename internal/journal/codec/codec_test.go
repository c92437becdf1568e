package codec

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

func newTestFrameCoders(t testing.TB) (*FrameEncoder, *FrameDecoder) {
	t.Helper()
	p, err := NewFrameEncoder()
	if err != nil {
		t.Fatal(err)
	}
	u, err := NewFrameDecoder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return p, u
}

func TestEveryChangeComesBackAsItWas(t *testing.T) {
	p, u := newTestFrameCoders(t)
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		changes := make([]*event.Change, 1+r.IntN(20))
		for i := range changes {
			changes[i] = journaltest.RandomChange(r)
		}
		records, err := u.Decode(p.Encode(FrameHeader{Count: uint64(len(changes))}, changes))
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range changes {
			if !reflect.DeepEqual(&records[i], c) {
				t.Fatalf("change %d of %d\n got %+v\nwant %+v", i, len(changes), records[i], c)
			}
		}
		facts, err := u.DecodeWithoutBodies(p.Encode(FrameHeader{Count: uint64(len(changes))}, changes))
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range changes {
			bare := *c
			if bare.Before, bare.After, bare.Changed = nil, nil, nil; !reflect.DeepEqual(facts[i], bare) {
				t.Fatalf("change %d of %d without bodies\n got %+v\nwant %+v", i, len(changes), facts[i], bare)
			}
		}
	}
}

// A new field of event.Change that the codec does not store would be lost silently.
func TestEveryFieldOfAChangeIsStored(t *testing.T) {
	fields := 0
	var count func(reflect.Type)
	count = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i).Type
			if f == reflect.TypeFor[*event.DeadLetterInfo]() { // of copies only
				continue
			}
			if f.Kind() == reflect.Pointer {
				f = f.Elem()
			}
			if f.Kind() == reflect.Struct && f != reflect.TypeFor[time.Time]() {
				count(f)
			} else {
				fields++
			}
		}
	}
	count(reflect.TypeFor[event.Change]())
	if want := 86; fields != want {
		t.Fatalf("event.Change has %d fields, the codec and randomChange know %d: store the new one, raise the format if needed", fields, want)
	}
}

func TestABodyIsNotCopiedByDecoding(t *testing.T) {
	c := &event.Change{Type: event.Added, After: []byte(`{"a":1}`)}
	changes := []*event.Change{c}
	raw := appendRaw(nil, appendMeta(nil, changes), changes)
	back, err := decodeRaw(raw, 1)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] = '!'
	if got := string(back[0].After); got != `{"a":1!` {
		t.Fatalf("body %q does not alias the frame", got)
	}
}

func FuzzDecodeChanges(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 8 {
		changes := make([]*event.Change, n)
		for i := range changes {
			changes[i] = journaltest.RandomChange(r)
		}
		f.Add(appendRaw(nil, appendMeta(nil, changes), changes), uint64(n))
	}
	f.Fuzz(func(t *testing.T, raw []byte, count uint64) {
		changes, err := decodeRaw(raw, count)
		if err != nil {
			return
		}
		again := make([]*event.Change, len(changes))
		for i := range changes {
			again[i] = &changes[i]
		}
		back, err := decodeRaw(appendRaw(nil, appendMeta(nil, again), again), count)
		if err != nil || !reflect.DeepEqual(back, changes) {
			t.Fatalf("%d changes do not survive another turn: %v", count, err)
		}
	})
}

func FuzzDecodeStored(f *testing.F) {
	p, u := newTestFrameCoders(f)
	f.Add(append([]byte{}, p.Encode(FrameHeader{Count: 1, Before: 9}, []*event.Change{journaltest.SmallChange(1)})...))
	f.Add(EncodeCursor(event.Cursor{Low: 9, State: []byte("s")}))
	f.Add(EncodeCursor(event.Cursor{Low: 3, Layout: "l", Lanes: map[string]uint64{"a": 5, "b": 1 << 40}}))
	f.Add(EncodeCursor(event.Cursor{Low: 3, Layout: "l", State: []byte("s"), Resending: 9}))
	f.Add(EncodeDeadLetter(p, &event.DeadLetter{Time: time.Unix(1, 2), Reason: "too large", Change: journaltest.SmallChange(2)}))
	f.Add(AppendKnown(nil, &event.Known{UID: "u", ResourceVersion: "1"}))
	f.Add(AppendKnown(nil, &event.Known{UID: "u", ResourceVersion: "1", Summary: "s"}))
	stored, _ := AppendBody(nil, nil, &event.Body{UID: "u", ResourceVersion: "1", Raw: []byte(`{"a":1}`)})
	f.Add(stored)
	f.Add(EncodeRecovery(Recovery{Reason: "r", MovedTo: "m"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = u.Decode(b)
		_, _ = u.DecodeWithoutBodies(b)
		_, _ = DecodeDeadLetter(u, 1, b)
		_, _ = DecodeRecovery(b)
		if c, err := DecodeCursor(b); err == nil {
			if back, err := DecodeCursor(EncodeCursor(c)); err != nil || !reflect.DeepEqual(back, c) {
				t.Fatalf("cursor %+v came back as %+v, %v", c, back, err)
			}
		}
		if k, err := DecodeKnown([]byte("k"), b); err == nil {
			if back, err := DecodeKnown([]byte("k"), AppendKnown(nil, &k)); err != nil || back != k {
				t.Fatalf("known %+v came back as %+v, %v", k, back, err)
			}
		}
		if body, err := DecodeBody("k", b); err == nil {
			again, _ := AppendBody(nil, nil, &body)
			if back, err := DecodeBody("k", again); err != nil || !reflect.DeepEqual(back, body) {
				t.Fatalf("body %+v came back as %+v, %v", body, back, err)
			}
		}
		if len(b) == 0 {
			return
		}
		if sink, offset, err := SplitDeadLetterKey(b); err == nil {
			if s, o, err := SplitDeadLetterKey(KeyDeadLetter(sink, offset)); err != nil || s != sink || o != offset {
				t.Fatalf("dead letter %q %d came back as %q %d", sink, offset, s, o)
			}
		}
	})
}
