package hostile

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// Moments is at how many random moments the states are known.
const Moments = 50

// minute is how far changes of one cluster are apart. What is known a few seconds later is known at its half.
const minute = time.Minute

var begin = time.Date(2026, 1, 2, 10, 0, 0, 0, time.UTC)

var resources = []event.Resource{
	{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles", Kind: "Role"},
}

// names are what objects are called. A Role's may have any character that a path may have.
var names = map[string][]string{
	"configmaps": {"kept", "again", "going", "text", "web.eu"},
	"roles":      {"h\x00i", "hi", "h\ufffdi", `q"uote\`, "system:x"},
}

// values of objects that break readers.
var values = []string{`"red"`, `"a\u0000b"`, `"[^\\u0000-\\u007f]"`, `"half \ud800 of \udc00 pairs \ud83d\ude00"`, `"\\\\ud800 \\"`, `"$raw$ ' 😀"`, `1e21`, `9007199254740993`}

// State is what existed: cluster/resource/namespace/name@resourceVersion, in order, with %00 in place of NUL.
type State []string

// Stream is what was emitted, and the truth.
type Stream struct {
	Changes []*event.Change // as emitted, with repetitions
	GrownAt int             // index of the first change after which the topic has three partitions, and not two
	Now     State
	Moments []time.Time       // in order
	At      []State           // at the moments
	Authors map[string]string // of changes, by ID
}

// Lines returns the records of the format json, one a line, as a reader gets them that reads the partitions at different
// speeds.
func (s *Stream) Lines(rnd *rand.Rand) (lines []string) {
	partitions := make([][]string, 3)
	for i, c := range s.Changes {
		count := uint32(2)
		if i >= s.GrownAt {
			count = 3
		}
		hash := fnv.New32a()
		hash.Write(c.AppendKey(nil))
		n := hash.Sum32() % count
		partitions[n] = append(partitions[n], string(format.AppendJSON(nil, c)))
	}
	for left := len(s.Changes); left > 0; {
		n := rnd.IntN(3)
		take := min(rnd.IntN(9), len(partitions[n]))
		lines = append(lines, partitions[n][:take]...)
		partitions[n], left = partitions[n][take:], left-take
	}
	return lines
}

// object is one version of an object.
type object struct {
	resource             event.Resource
	namespace, name, uid string
	version              int
	body                 []byte
}

type key struct {
	resource        string
	namespace, name string
}

func (o object) key() key { return key{o.resource.Resource, o.namespace, o.name} }

// step is a change in a cluster that the exporter has not read yet.
type step struct {
	at       time.Time
	old, now *object // nil if there was, or is, none
	revision int
}

// cluster is a cluster and its exporter.
type cluster struct {
	*world
	name     string
	revision int
	uids     int
	exist    map[key]object
	known    map[key]object
	ghosts   map[key]event.Resource // that a lost journal left in tables of what exists
	unread   []step
	passes   int
	left     map[key]bool // that the rules do not select
}

// world makes a stream.
type world struct {
	rnd      *rand.Rand
	now      time.Time
	stream   *Stream
	past     map[time.Time]State
	vague    []time.Time // moments at which the stream leaves open what existed
	clusters []*cluster
}

// Make returns the stream of a seed.
func Make(seed uint64) *Stream {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 44)), now: begin, past: map[time.Time]State{}, stream: &Stream{Authors: map[string]string{}}}
	for _, name := range []string{"a", "b"} {
		c := &cluster{world: w, name: name, revision: 100, exist: map[key]object{}, known: map[key]object{},
			ghosts: map[key]event.Resource{}, left: map[key]bool{}}
		if name == "b" {
			c.revision = 1<<62 + 100
		}
		w.clusters = append(w.clusters, c)
		for range 8 {
			c.change()
		}
		c.unread = nil
		c.snapshot(false)
	}
	w.vague = slices.Collect(maps.Keys(w.past)) // nothing is known of the time before the first lists
	for i := range 120 {
		w.clusters[w.rnd.IntN(2)].act(w.rnd.IntN(12))
		if w.stream.GrownAt == 0 && i > 60 {
			w.stream.GrownAt = len(w.stream.Changes)
		}
	}
	for _, c := range w.clusters {
		c.watch()
		c.repair()
	}
	w.stream.Now = w.state()
	var certain []time.Time
	for at := range w.past {
		if !slices.Contains(w.vague, at) {
			certain = append(certain, at)
		}
	}
	slices.SortFunc(certain, time.Time.Compare)
	w.rnd.Shuffle(len(certain), func(i, j int) { certain[i], certain[j] = certain[j], certain[i] })
	w.stream.Moments = certain[:min(Moments, len(certain))]
	slices.SortFunc(w.stream.Moments, time.Time.Compare)
	for _, at := range w.stream.Moments {
		w.stream.At = append(w.stream.At, w.past[at])
	}
	return w.stream
}

// state returns what exists and is selected.
func (w *world) state() State {
	state := State{}
	for _, c := range w.clusters {
		for _, o := range c.exist {
			if !c.left[o.key()] {
				state = append(state, NameRow(c.name, o.resource.Resource, o.namespace, o.name, strconv.Itoa(o.version)))
			}
		}
	}
	sort.Strings(state)
	return state
}

// pass lets a minute pass. The state at its half is known.
func (w *world) pass() {
	w.past[w.now.Add(minute/2)] = w.state()
	w.now = w.now.Add(minute)
}

// act is what happens next.
func (c *cluster) act(what int) {
	switch what {
	case 0: // history expires while the exporter is away
		c.away(c.relist)
	case 1: // the journal is lost
		c.away(func() { c.snapshot(true) })
	case 2: // a replay
		c.replay()
	case 3: // a restart repeats what it does not know to be acknowledged
		c.watch()
		n := len(c.stream.Changes)
		c.stream.Changes = append(c.stream.Changes, slices.Clone(c.stream.Changes[n-min(n, c.rnd.IntN(12)):])...)
	case 4:
		c.repair()
	case 5: // a signal has what exists emitted again
		c.partial()
	case 6:
		c.editRules()
	case 7: // a resync
		pass := c.nextPass()
		for _, o := range c.sorted(c.known) {
			c.emitObject(event.Sync, o, func(e *event.Change) { e.Pass, e.ListVersion, e.Delta = pass, c.at(), event.DeltaSync })
		}
	case 8: // the exporter is paused
		for range 1 + c.rnd.IntN(4) {
			c.change()
			c.pass()
		}
		c.now = c.now.Add(minute) // what is read late has a bound by its own time
		c.watch()
	default:
		for range 1 + c.rnd.IntN(3) {
			c.change()
			c.watch()
			c.pass()
		}
	}
	c.now = c.now.Add(minute)
}

// change makes a change, or an object that takes the place of another at once.
func (c *cluster) change() {
	resource := resources[c.rnd.IntN(len(resources))]
	o := object{resource: resource, namespace: []string{"shop", "", "x"}[c.rnd.IntN(2)], name: names[resource.Resource][c.rnd.IntN(5)]}
	old, exists := c.exist[o.key()]
	if c.left[o.key()] {
		return
	}
	switch chance := c.rnd.IntN(6); {
	case !exists:
		c.write(nil, c.newObject(o))
	case chance == 0:
		c.write(&old, nil)
	case chance == 1:
		c.write(&old, nil)
		c.write(nil, c.newObject(o))
	default:
		c.write(&old, &old)
	}
}

func (c *cluster) newObject(o object) *object {
	c.uids++
	o.uid = c.name + "-u" + strconv.Itoa(c.uids)
	return &o
}

// write changes an object, with a revision of its own.
func (c *cluster) write(old, now *object) {
	c.revision += 1 + c.rnd.IntN(3)
	one := step{at: c.now.Add(time.Duration(c.rnd.IntN(1e9))), revision: c.revision}
	if len(c.unread) > 0 && one.at.Before(c.unread[len(c.unread)-1].at) {
		one.at = c.unread[len(c.unread)-1].at
	}
	if old != nil {
		before := *old
		one.old = &before
		delete(c.exist, before.key())
	}
	if now != nil {
		after := *now
		after.version = c.revision
		after.body = bodyOf(after, values[c.rnd.IntN(len(values))])
		one.now = &after
		c.exist[after.key()] = after
	}
	c.unread = append(c.unread, one)
}

func bodyOf(o object, value string) []byte {
	text := func(s string) string {
		quoted, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		return string(quoted)
	}
	namespace := ""
	if o.namespace != "" {
		namespace = `,"namespace":` + text(o.namespace)
	}
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":%s,"metadata":{"name":%s%s,"uid":%s,"resourceVersion":"%d"},"data":{"value":%s}}`,
		text(o.resource.Kind), text(o.name), namespace, text(o.uid), o.version, value)
}

// watch emits what was not read yet, as a watch has it. Some of it gets an author later.
func (c *cluster) watch() {
	var attributed []*event.Change
	for _, one := range c.unread {
		mark := func(e *event.Change) {
			e.ChangedAt = event.ChangeTime{At: one.at.Add(time.Second), NotBefore: one.at.Add(-time.Second), Source: event.TimeFromManagedFields}
			if c.rnd.IntN(2) == 0 && c.now.Sub(one.at) < minute {
				e.ChangedAt = event.ChangeTime{At: e.ObservedAt, Source: event.TimeFromWatch}
			}
		}
		var e *event.Change
		switch {
		case one.now == nil:
			gone := *one.old
			gone.version = one.revision
			e = c.emitObject(event.Deleted, gone, mark)
		case one.old == nil:
			e = c.emitObject(event.Added, *one.now, mark)
		default:
			e = c.emitObject(event.Updated, *one.now, func(e *event.Change) {
				mark(e)
				e.Before, e.Class = one.old.body, event.ClassSpec
				e.Changed = []byte(`[{"path":"/data/value","from":1,"to":2}]`)
			})
		}
		if c.rnd.IntN(3) > 0 {
			attributed = append(attributed, e)
		}
	}
	c.unread = nil
	for _, e := range attributed {
		user := []string{"alice", "bob", "system:serviceaccount:x:y"}[c.rnd.IntN(3)]
		by := *e
		by.Type, by.Delta, by.Before, by.After, by.Changed, by.Class, by.ChangedAt = event.Attributed, "", nil, nil, nil, "", event.ChangeTime{}
		by.Attribution = &event.Attribution{Of: e.ID(), By: event.Identity{User: user, Verb: "update", Received: e.ObservedAt}, Certainty: event.Exact}
		c.stream.Authors[e.ID()] = user
		c.emit(&by)
	}
}

// away has changes that nothing watches. What existed meanwhile is not known.
func (c *cluster) away(back func()) {
	c.watch()
	from := c.now
	for range c.rnd.IntN(5) {
		c.change()
		c.pass()
	}
	c.unread = nil
	back()
	for at := range c.past {
		if at.After(from) {
			c.vague = append(c.vague, at)
		}
	}
	c.now = c.now.Add(minute)
}

func (c *cluster) at() string { return strconv.Itoa(c.revision) }

func (c *cluster) nextPass() string {
	c.passes++
	return "pass-" + strconv.Itoa(c.passes)
}

// sorted returns objects in a random order that is the same each time.
func (c *cluster) sorted(of map[key]object) []object {
	all := slices.SortedFunc(maps.Values(of), func(a, b object) int { return strings.Compare(fmt.Sprint(a.key()), fmt.Sprint(b.key())) })
	c.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// relist emits a gap, and the differences between what is known and what exists.
func (c *cluster) relist() {
	from := c.revision
	c.revision++
	for _, r := range resources {
		c.emit(&event.Change{Type: event.Gap, Resource: r, ResourceVersion: c.at(), Gap: &event.GapInfo{From: strconv.Itoa(from), To: c.at(), Reason: "expired"}})
	}
	list := c.nextPass()
	mark := func(e *event.Change) { e.Coalesced, e.ListVersion = true, c.at() }
	for _, o := range c.sorted(c.known) {
		now, exists := c.exist[o.key()]
		if exists && now.uid == o.uid {
			if now.version != o.version {
				c.emitObject(event.Updated, now, mark)
			}
			continue
		}
		c.emitObject(event.Deleted, o, func(e *event.Change) {
			mark(e)
			e.FinalStateUnknown, e.Pass = true, list
			if exists {
				e.Pass = now.uid
			}
		})
		if exists {
			c.emitObject(event.Added, now, mark)
		}
	}
	for _, o := range c.sorted(c.exist) {
		if _, known := c.known[o.key()]; !known && !c.left[o.key()] {
			c.emitObject(event.Added, o, mark)
		}
	}
}

// snapshot emits first lists. If the journal was lost, what was known is forgotten.
func (c *cluster) snapshot(lost bool) {
	for k, o := range c.known {
		if _, exists := c.exist[k]; !exists {
			c.ghosts[k] = o.resource
		}
	}
	c.known = map[key]object{}
	clear(c.left)
	c.revision++
	for _, r := range resources {
		info := &event.SnapshotInfo{ID: c.nextPass()}
		if lost {
			c.emit(&event.Change{Type: event.Gap, Resource: r, ResourceVersion: c.at(), Gap: &event.GapInfo{To: c.at(), Reason: "the journal was lost"}})
		}
		c.emit(&event.Change{Type: event.SnapshotBegin, Resource: r, Snapshot: info})
		position, listed := c.at(), 0
		var digest event.Digest
		for _, o := range c.sorted(c.exist) {
			if o.resource == r {
				c.emitObject(event.Snapshot, o, func(e *event.Change) { e.Snapshot, e.ListVersion = info, position })
				digest.Add(o.namespace, o.name, o.uid, strconv.Itoa(o.version))
				listed++
			}
		}
		c.emit(&event.Change{Type: event.SnapshotEnd, Resource: r, ResourceVersion: position,
			Snapshot: &event.SnapshotInfo{ID: info.ID, Position: position, Count: listed, Digest: digest.String()}})
	}
}

// partial emits single objects again, and deletes of what does not exist.
func (c *cluster) partial() {
	c.watch()
	c.revision++
	for _, r := range resources {
		info := &event.SnapshotInfo{ID: c.nextPass()}
		c.emit(&event.Change{Type: event.PartialBegin, Resource: r, Snapshot: info})
		for _, o := range c.sorted(c.known) {
			if o.resource == r && c.rnd.IntN(2) == 0 {
				c.emitObject(event.Snapshot, o, func(e *event.Change) { e.Snapshot, e.ListVersion = info, c.at() })
			}
		}
		c.emit(&event.Change{Type: event.PartialEnd, Resource: r, ResourceVersion: c.at(), Snapshot: info})
	}
}

// repair deletes what a lost journal left in tables, by a signal, without knowing its UID.
func (c *cluster) repair() {
	c.watch()
	c.revision++
	for _, k := range slices.SortedFunc(maps.Keys(c.ghosts), func(a, b key) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		if _, exists := c.exist[k]; !exists {
			pass := c.nextPass()
			c.emit(&event.Change{Type: event.Deleted, Delta: event.DeltaDeleted, Resource: c.ghosts[k], Namespace: k.namespace, Name: k.name,
				ResourceVersion: c.at(), ListVersion: c.at(), Coalesced: true, FinalStateUnknown: true, Snapshot: &event.SnapshotInfo{ID: pass}, Pass: pass + "/" + k.name})
		}
	}
	clear(c.ghosts)
}

// editRules selects an object no longer that exists, or again.
func (c *cluster) editRules() {
	c.watch()
	pass := c.nextPass()
	for _, o := range c.sorted(c.exist) {
		if c.left[o.key()] {
			delete(c.left, o.key())
			c.emitObject(event.Added, o, func(e *event.Change) { e.Coalesced, e.ListVersion, e.Pass = true, c.at(), pass })
			break
		}
		if c.rnd.IntN(4) == 0 {
			c.left[o.key()] = true
			c.emitObject(event.Deleted, o, func(e *event.Change) {
				e.Coalesced, e.FinalStateUnknown, e.Left, e.ListVersion, e.Pass = true, true, true, c.at(), pass
			})
			break
		}
	}
	c.pass()
}

// replay emits records of the past again.
func (c *cluster) replay() {
	id := c.nextPass()
	for i, e := range c.stream.Changes {
		if e.Cluster == c.name && !e.Type.IsControl() && e.Type != event.Replayed && c.rnd.IntN(8) == 0 {
			again := *e
			again.Type, again.Pass = event.Replayed, id+"/"+strconv.Itoa(i)
			again.Replay = &event.ReplayInfo{ID: id, Of: e.ID(), Type: e.Type}
			c.emit(&again)
		}
	}
	for _, r := range resources {
		c.emit(&event.Change{Type: event.ReplayEnd, Resource: r, ResourceVersion: "0", Replay: &event.ReplayInfo{ID: id, State: "done"}})
	}
}

func (c *cluster) emitObject(t event.Type, o object, mark func(*event.Change)) *event.Change {
	e := &event.Change{Type: t, Delta: event.DeltaUpdated, Resource: o.resource, Namespace: o.namespace, Name: o.name, UID: o.uid,
		ResourceVersion: strconv.Itoa(o.version), After: o.body, ObservedAt: c.now.Add(2 * time.Second)}
	if t == event.Deleted {
		e.Before, e.After = o.body, nil
	}
	if mark(e); t == event.Deleted {
		delete(c.known, o.key())
	} else {
		c.known[o.key()] = o
	}
	return c.emit(e)
}

// emit adds a record. Each has been read a moment after the one before it.
func (c *cluster) emit(e *event.Change) *event.Change {
	e.Cluster, e.ObservedAt = c.name, c.now.Add(2*time.Second+time.Duration(len(c.stream.Changes))*time.Microsecond)
	if e.Snapshot != nil && e.Type.FramesSnapshot() && e.ResourceVersion == "" {
		e.ResourceVersion = c.at()
	}
	c.stream.Changes = append(c.stream.Changes, e)
	return e
}

// Row returns the item of a [State] for an object as JSON.
func Row(cluster, resource string, body []byte) (string, error) {
	var o struct {
		Metadata struct{ Namespace, Name, ResourceVersion string }
	}
	if err := json.Unmarshal(body, &o); err != nil {
		return "", fmt.Errorf("%w: %s", err, body)
	}
	return NameRow(cluster, resource, o.Metadata.Namespace, o.Metadata.Name, o.Metadata.ResourceVersion), nil
}

// NameRow returns the item of a [State] for an object.
func NameRow(cluster, resource, namespace, name, version string) string {
	return strings.ReplaceAll(cluster+"/"+resource+"/"+namespace+"/"+name+"@"+version, "\x00", "%00")
}
