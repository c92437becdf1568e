package journal

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// randomChange sets every field of a change at random, also to values no exporter would make.
func randomChange(r *rand.Rand) *event.Change {
	str := func() string {
		b := make([]byte, r.IntN(12))
		for i := range b {
			b[i] = byte(r.UintN(256))
		}
		return string(b)
	}
	list := func() []string {
		l := make([]string, r.IntN(4))
		for i := range l {
			l[i] = str()
		}
		return l
	}
	body := func() []byte {
		if r.IntN(3) == 0 {
			return nil
		}
		return append([]byte{}, str()...)
	}
	c := &event.Change{
		Type: typeCodes[r.IntN(len(typeCodes))], Delta: deltaCodes[r.IntN(len(deltaCodes))], Cluster: str(),
		Resource:  event.Resource{Group: str(), Version: str(), Resource: str(), Kind: str()},
		Namespace: str(), Name: str(), UID: str(), ResourceVersion: str(), Generation: r.Int64() - r.Int64(),
		Coalesced: r.IntN(2) == 0, FinalStateUnknown: r.IntN(2) == 0, Before: body(), After: body(),
	}
	if r.IntN(4) > 0 {
		c.ObservedAt = time.Unix(r.Int64N(1<<40)-1<<39, r.Int64N(1e9)).UTC()
	}
	if r.IntN(5) == 0 {
		c.Type, c.Delta = event.Type(str()), event.Delta(str())
	}
	if r.IntN(2) == 0 {
		c.Actor = &event.Actor{Manager: str(), Operation: str(), Subresource: str(), Time: str()}
	}
	if r.IntN(2) == 0 {
		c.Class = classCodes[r.IntN(len(classCodes))]
	}
	if r.IntN(5) == 0 {
		c.Class = event.Class(str())
	}
	if r.IntN(3) == 0 {
		c.Snapshot = &event.SnapshotInfo{ID: str(), Position: str(), Count: r.Int() - r.Int(), Digest: str()}
	}
	if r.IntN(3) == 0 {
		c.Changed, c.Patch = list(), append([]byte{}, str()...)
	}
	if r.IntN(3) == 0 {
		c.Omitted, c.Withheld = list(), str()
	}
	if r.IntN(3) == 0 {
		c.Left, c.RedactionChanged, c.Pass = true, true, str()
	}
	if r.IntN(3) == 0 {
		c.Gap = &event.GapInfo{From: str(), To: str(), Reason: str()}
	}
	if r.IntN(2) == 0 {
		c.Previous = str()
	}
	if r.IntN(4) == 0 {
		identity := func() event.Identity {
			return event.Identity{
				User: str(), UID: str(), Groups: list(), Impersonator: str(), Verb: str(), Subresource: str(),
				Received: time.Unix(r.Int64N(1<<40), r.Int64N(1e9)).UTC(), UserAgent: str(), SourceIPs: list(), AuditID: str(),
			}
		}
		c.Attribution = &event.Attribution{Of: str(), Certainty: str(), By: identity()}
		if r.IntN(2) == 0 {
			asked := identity()
			c.Attribution.RequestedBy = &asked
		}
	}
	return c
}

func newTestPacker(t testing.TB) (*packer, *unpacker) {
	t.Helper()
	p, err := newPacker()
	if err != nil {
		t.Fatal(err)
	}
	u, err := newUnpacker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.zstd.Close)
	return p, u
}

func TestEveryChangeComesBackAsItWas(t *testing.T) {
	p, u := newTestPacker(t)
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		changes := make([]*event.Change, 1+r.IntN(20))
		for i := range changes {
			changes[i] = randomChange(r)
		}
		records, err := u.changes(p.frame(frameHeader{count: uint64(len(changes))}, changes))
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range changes {
			if !reflect.DeepEqual(&records[i], c) {
				t.Fatalf("change %d of %d\n got %+v\nwant %+v", i, len(changes), records[i], c)
			}
		}
	}
}

// A new field of event.Change that nobody stores would be lost silently.
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
	if want := 59; fields != want {
		t.Fatalf("event.Change has %d fields, the codec and randomChange know %d: store the new one, raise the format if needed", fields, want)
	}
}

func TestABodyIsNotCopiedByDecoding(t *testing.T) {
	c := &event.Change{Type: event.Added, After: []byte(`{"a":1}`)}
	raw := appendRaw(nil, appendMeta(nil, c), []*event.Change{c})
	changes, err := decodeRaw(raw, 1)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] = '!'
	if got := string(changes[0].After); got != `{"a":1!` {
		t.Fatalf("body %q does not alias the frame", got)
	}
}

func FuzzDecodeChanges(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 8 {
		var meta []byte
		changes := make([]*event.Change, n)
		for i := range changes {
			changes[i] = randomChange(r)
			meta = appendMeta(meta, changes[i])
		}
		f.Add(appendRaw(nil, meta, changes), uint64(n))
	}
	f.Fuzz(func(t *testing.T, raw []byte, count uint64) {
		changes, err := decodeRaw(raw, count)
		if err != nil {
			return
		}
		var meta []byte
		again := make([]*event.Change, len(changes))
		for i := range changes {
			again[i] = &changes[i]
			meta = appendMeta(meta, again[i])
		}
		back, err := decodeRaw(appendRaw(nil, meta, again), count)
		if err != nil || !reflect.DeepEqual(back, changes) {
			t.Fatalf("%d changes do not survive another turn: %v", count, err)
		}
	})
}

func FuzzDecodeStored(f *testing.F) {
	p, u := newTestPacker(f)
	f.Add(append([]byte{}, p.frame(frameHeader{count: 1, before: 9}, []*event.Change{smallChange(1)})...))
	f.Add(encodeCursor(event.Cursor{Low: 9, State: []byte("s")}))
	f.Add(encodeCursor(event.Cursor{Low: 3, Layout: "l", Lanes: map[string]uint64{"a": 5, "b": 1 << 40}}))
	f.Add(encodeDead(p, &event.DeadLetter{Time: time.Unix(1, 2), Reason: "too large", Change: smallChange(2)}))
	f.Add(appendKnown(nil, &event.Known{UID: "u", ResourceVersion: "1"}))
	f.Add(appendKnown(nil, &event.Known{UID: "u", ResourceVersion: "1", Summary: "s"}))
	stored, _ := appendBody(nil, nil, &event.Body{UID: "u", ResourceVersion: "1", Raw: []byte(`{"a":1}`)})
	f.Add(stored)
	f.Add(encodeRecovery(Recovery{Reason: "r", MovedTo: "m"}))
	f.Add(encodeVersion())
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = u.changes(b)
		_, _ = decodeDead(u, 1, b)
		_, _ = decodeRecovery(b)
		_ = decodeVersion(b)
		if c, err := decodeCursor(b); err == nil {
			if back, err := decodeCursor(encodeCursor(c)); err != nil || !reflect.DeepEqual(back, c) {
				t.Fatalf("cursor %+v came back as %+v, %v", c, back, err)
			}
		}
		if k, err := decodeKnown([]byte("k"), b); err == nil {
			if back, err := decodeKnown([]byte("k"), appendKnown(nil, &k)); err != nil || back != k {
				t.Fatalf("known %+v came back as %+v, %v", k, back, err)
			}
		}
		if body, err := decodeBody("k", b); err == nil {
			again, _ := appendBody(nil, nil, &body)
			if back, err := decodeBody("k", again); err != nil || !reflect.DeepEqual(back, body) {
				t.Fatalf("body %+v came back as %+v, %v", body, back, err)
			}
		}
		if len(b) == 0 {
			return
		}
		if sink, offset, err := cutDead(b); err == nil {
			if s, o, err := cutDead(keyDead(sink, offset)); err != nil || s != sink || o != offset {
				t.Fatalf("dead letter %q %d came back as %q %d", sink, offset, s, o)
			}
		}
	})
}
