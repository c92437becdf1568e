package journal

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

// model is the journal as a few maps and a slice.
type model struct {
	log     []*event.Change                         // log[i] has offset i+1
	scopes  map[string]map[string]event.StoredScope // by resource and ID
	bodies  map[string]map[string]event.Body
	known   map[string]map[string]event.Known
	version map[string]string // of every resource of which anything is stored
	cursors map[string]event.Cursor
	dead    map[string]map[uint64]event.DeadLetter
}

// modelRun plays random steps against a journal and its model at once.
type modelRun struct {
	*runningJournal
	r    *rand.Rand
	opts Options
	model
}

const modelSinks = 2

// modelResources have names that begin alike: they share no key.
var modelResources = []string{"a", "ab", "b", "a b"}

func (m *modelRun) randomResource() string { return modelResources[m.r.IntN(len(modelResources))] }
func (m *modelRun) randomSink() string     { return fmt.Sprint("sink-", m.r.IntN(modelSinks)) }

func (m *modelRun) appendRandom() {
	name := m.randomResource()
	o := event.Observation{Resource: resourceNamed(name), Scope: name + ";ns=" + fmt.Sprint(m.r.IntN(3))}
	o.Resource.Version = fmt.Sprint("v", m.r.IntN(2))
	m.version[name] = o.Resource.Version
	for range m.r.IntN(4) {
		c := journaltest.RandomChange(m.r)
		o.Changes = append(o.Changes, c)
	}
	if m.known[name] == nil {
		m.known[name] = map[string]event.Known{}
	}
	for range m.r.IntN(3) {
		k := event.Known{Key: fmt.Sprint(m.r.IntN(9)), UID: fmt.Sprint(m.r.Int()), ResourceVersion: fmt.Sprint(m.r.Int())}
		if m.r.IntN(2) == 0 {
			k.Summary = fmt.Sprint(m.r.Int())
		}
		o.Known = append(o.Known, k)
		m.known[name][k.Key] = k
	}
	for range m.r.IntN(2) {
		key := fmt.Sprint(m.r.IntN(9))
		o.RemovedKeys = append(o.RemovedKeys, key)
		delete(m.known[name], key)
		delete(m.bodies[name], key)
	}
	for range m.r.IntN(3) {
		b := event.Body{Key: fmt.Sprint(m.r.IntN(9)), UID: fmt.Sprint(m.r.Int()), ResourceVersion: fmt.Sprint(m.r.Int()), Raw: bytes.Repeat([]byte{byte(m.r.UintN(256))}, m.r.IntN(500))}
		o.Bodies = append(o.Bodies, b)
		if m.bodies[name] == nil {
			m.bodies[name] = map[string]event.Body{}
		}
		m.bodies[name][b.Key] = b
	}
	if m.r.IntN(5) == 0 {
		o.Snapshot = fmt.Sprint(m.r.Int())
	}
	if m.r.IntN(5) == 0 {
		o.LostReason = fmt.Sprint(m.r.Int())
	} else if m.r.IntN(2) == 0 {
		o.Position = fmt.Sprint(m.r.Int())
	}
	m.applyScope(&o)
	m.log = append(m.log, o.Changes...)
	m.mustAppend(o)
	m.compareBody(name, fmt.Sprint(m.r.IntN(9))) // seen before it is committed
}

// compareBody reads back a body, committed or not.
func (m *modelRun) compareBody(name, key string) {
	m.t.Helper()
	got, found, err := m.Body(name, key)
	want, kept := m.bodies[name][key]
	if err != nil || found != kept || got.Key != want.Key || got.UID != want.UID || got.ResourceVersion != want.ResourceVersion || !bytes.Equal(got.Raw, want.Raw) {
		m.t.Fatalf("body of %s in %s: %+v %v %v, want %+v %v", key, name, got, found, err, want, kept)
	}
}

func (m *modelRun) settleRandom() {
	m.commitAll()
	newest := uint64(len(m.log))
	name := m.randomSink()
	c := m.cursors[name]
	c.Low += m.r.Uint64N(newest - c.Low + 1)
	c.Layout = fmt.Sprint(m.r.IntN(3))
	c.Lanes = nil
	c.High = c.Low
	if newest > c.Low {
		c.High += m.r.Uint64N(newest - c.Low + 1)
	}
	for lane := range m.r.IntN(3) {
		if c.Low < newest {
			if c.Lanes == nil {
				c.Lanes = map[string]uint64{}
			}
			c.Lanes[fmt.Sprint("lane-", lane)] = c.Low + 1 + m.r.Uint64N(newest-c.Low)
		}
	}
	var dead []event.DeadLetter
	for range m.r.IntN(3) {
		if c.Low == 0 {
			break
		}
		offset := 1 + m.r.Uint64N(c.Low)
		d := event.DeadLetter{Offset: offset, Time: time.Unix(m.r.Int64N(1e9), 0).UTC(), Reason: fmt.Sprint(m.r.Int()), Change: m.log[offset-1]}
		dead = append(dead, d)
		m.dead[name][offset] = d
	}
	m.cursors[name] = c.Normalize()
	m.mustSettle(name, c, dead...)
}

// commitAll waits until everything appended is committed.
func (m *modelRun) commitAll() {
	m.t.Helper()
	if err := m.Flush(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

func (m *modelRun) dropRandom() {
	name := m.randomResource()
	var err error
	switch m.r.IntN(3) {
	case 0:
		delete(m.bodies, name)
		err = m.DropBodies(m.t.Context(), name)
	case 1:
		delete(m.bodies, name)
		delete(m.known, name)
		delete(m.scopes, name)
		delete(m.version, name)
		err = m.DropResource(m.t.Context(), name)
	default:
		r := resourceNamed(name)
		r.Version = "v9"
		m.version[name] = r.Version
		var scopes []event.StoredScope
		m.scopes[name] = map[string]event.StoredScope{}
		for i := range m.r.IntN(3) {
			s := event.StoredScope{ID: name + ";ns=" + fmt.Sprint(i), Position: fmt.Sprint(m.r.IntN(9)), Snapshot: "s", LostReason: fmt.Sprint(m.r.IntN(9)), Pass: "p"}
			scopes = append(scopes, s)
			m.scopes[name][s.ID] = s
		}
		err = m.SetScopes(m.t.Context(), r, scopes)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// applyScope applies an observation to the model of its scope.
func (m *modelRun) applyScope(o *event.Observation) {
	name := o.Resource.String()
	s := m.scopes[name][o.Scope]
	s.ID = o.Scope
	if o.Position == "" && o.Snapshot == "" && o.LostReason == "" {
		return
	}
	if o.LostReason != "" {
		s.Position, s.Snapshot, s.LostReason = "", "", o.LostReason
	}
	if o.Snapshot != "" {
		s.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		s.Position, s.LostReason, s.Pass = o.Position, "", ""
	}
	if m.scopes[name] == nil {
		m.scopes[name] = map[string]event.StoredScope{}
	}
	m.scopes[name][o.Scope] = s
}

// compareResource reads back what is stored of a resource.
func (m *modelRun) compareResource(name string) {
	m.t.Helper()
	var known []event.Known
	got, err := m.LoadResource(name, func(k event.Known) { known = append(known, k) })
	var want []event.Known
	for _, key := range slices.Sorted(maps.Keys(m.known[name])) {
		want = append(want, m.known[name][key])
	}
	var scopes []event.StoredScope
	for _, id := range slices.Sorted(maps.Keys(m.scopes[name])) {
		scopes = append(scopes, m.scopes[name][id])
	}
	if err != nil || !reflect.DeepEqual(known, want) || !reflect.DeepEqual(got.Scopes, scopes) || got.Resource.Version != m.version[name] {
		m.t.Fatalf("%s: %+v %+v %v, want %+v %+v %q", name, got, known, err, want, scopes, m.version[name])
	}
	for key := range 9 {
		m.compareBody(name, fmt.Sprint(key))
	}
	if len(m.bodies[name]) > 0 && !slices.Contains(m.BodyResources(), name) {
		m.t.Fatalf("%s has bodies and is not among %v", name, m.BodyResources())
	}
}

func (m *modelRun) reopen() {
	m.stopAndClose()
	m.runningJournal = startJournal(m.t, m.opts)
	if _, recovered := m.PendingRecovery(); recovered {
		m.t.Error("a whole store claims to be recovered")
	}
}

// compareAll reads back everything and compares it with the model.
func (m *modelRun) compareAll() {
	m.t.Helper()
	m.commitAll()
	newest, oldest := m.Newest(), m.Oldest()
	if newest != uint64(len(m.log)) {
		m.t.Fatalf("newest %d, want %d", newest, len(m.log))
	}
	low := newest
	for i := range modelSinks {
		low = min(low, m.cursors[fmt.Sprint("sink-", i)].Low)
	}
	if oldest > low+1 || oldest == 0 {
		m.t.Fatalf("oldest %d above the lowest cursor %d", oldest, low)
	}
	after := oldest - 1 + m.r.Uint64N(newest-oldest+2)
	for _, rec := range m.readTo(after, newest) {
		want := m.log[rec.Offset-1]
		if inMemory := rec.Change == want; !reflect.DeepEqual(rec.Change, want) || rec.InFrame == inMemory {
			m.t.Fatalf("change %d is %+v, in a frame: %v, want %+v", rec.Offset, rec.Change, rec.InFrame, want)
		}
	}
	for _, name := range modelResources {
		m.compareResource(name)
	}
	names, err := m.Resources()
	if want := slices.Sorted(maps.Keys(m.version)); err != nil || !slices.Equal(names, want) {
		m.t.Fatalf("resources %v %v, want %v", names, err, want)
	}
	if n := len(m.KnownObjects.bodies.pending); n > 0 {
		m.t.Fatalf("%d bodies count as pending after everything was committed", n)
	}
	for i := range modelSinks {
		name := fmt.Sprint("sink-", i)
		c, _, err := m.Cursor(name)
		if err != nil || !reflect.DeepEqual(c, m.cursors[name]) {
			m.t.Fatalf("%s: cursor %+v %v, want %+v", name, c, err, m.cursors[name])
		}
		got := map[uint64]event.DeadLetter{}
		if err := m.DeadLetters.reader().forEachLetter(name, func(d event.DeadLetter) error { got[d.Offset] = d; return nil }); err != nil {
			m.t.Fatal(err)
		}
		if !reflect.DeepEqual(got, m.dead[name]) {
			m.t.Fatalf("%s: %d dead letters, want %d", name, len(got), len(m.dead[name]))
		}
		if st := m.Stat().Sinks[i]; st.DeadLetters != int64(len(got)) || (st.DeadBytes == 0) != (len(got) == 0) {
			m.t.Fatalf("%s: stat %+v with %d dead letters", name, st, len(got))
		}
	}
}

func TestTheJournalBehavesAsItsModel(t *testing.T) {
	trimmed := false
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := &modelRun{
				r:    rand.New(rand.NewPCG(seed, 1)),
				opts: Options{FS: vfs.NewMem(), MaxBytes: 256 << 10, TailBytes: 2 << 10, PendingBytes: 4 << 10},
				model: model{
					scopes: map[string]map[string]event.StoredScope{}, version: map[string]string{},
					known: map[string]map[string]event.Known{}, bodies: map[string]map[string]event.Body{},
					cursors: map[string]event.Cursor{}, dead: map[string]map[uint64]event.DeadLetter{},
				},
			}
			for i := range modelSinks {
				name := fmt.Sprint("sink-", i)
				m.opts.Sinks = append(m.opts.Sinks, name)
				m.dead[name] = map[uint64]event.DeadLetter{}
			}
			m.runningJournal = startJournal(t, m.opts)
			for range 600 {
				switch n := m.r.IntN(100); {
				case n < 75:
					m.appendRandom()
				case n < 85:
					m.settleRandom()
				case n < 92:
					m.dropRandom()
				case n < 94:
					m.reopen()
				default:
					m.compareAll()
				}
			}
			m.compareAll()
			m.reopen()
			m.compareAll()
			trimmed = trimmed || m.Oldest() > 1
		})
	}
	if !trimmed {
		t.Error("no run ever trimmed: the test has lost its reach")
	}
}

// forEachLetter calls each for every dead letter of a sink, in order of offsets.
func (r deadLetterReader) forEachLetter(sink string, each func(event.DeadLetter) error) error {
	return r.forEachKey(codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink), func(key, value []byte) error {
		d, err := r.decodeLetter(key, value)
		if err != nil {
			return err
		}
		return each(d)
	})
}
