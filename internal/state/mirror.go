package state

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// sinkLane names a lane among the lanes of all sinks.
type sinkLane struct {
	sink string
	lane sinks.Lane
}

// mirror is this process's copy of the stored state. Only the goroutine inside Follow, TakeOver, Run, Inspect or Reset uses
// it.
type mirror struct {
	store sinks.StateStore
	log   *slog.Logger

	table *table
	// lostLanes are the lanes of a state that was purged or replaced. They still have to be fenced: an older process may
	// have messages on their way through them.
	lostLanes map[sinkLane]sinks.Tail
	// seen is the newest state that was read, without its lanes and resources. If there is none later, it was lost.
	seen stateContent
}

// readContent reads the state to its end and decodes everything but the known objects.
func (m *mirror) readContent(ctx context.Context) (stateContent, error) {
	if err := m.readStored(ctx); err != nil {
		return stateContent{}, err
	}
	c, err := m.table.decodeContent()
	if err != nil {
		return c, malformedState(err)
	}
	m.recordSeen(c)
	return c, nil
}

func (m *mirror) recordSeen(c stateContent) {
	if c.meta.version != 0 {
		m.seen = stateContent{meta: c.meta, deployment: c.deployment, members: c.members}
	}
}

// readStored applies everything that the store holds beyond the last read.
func (m *mirror) readStored(ctx context.Context) error {
	for {
		reset, err := m.store.Read(ctx, func(e sinks.StateEntry) error {
			m.table.applyEntry(e)
			return nil
		})
		switch {
		case err != nil:
			return fmt.Errorf("read the replicated state: %w", err)
		case reset:
			m.log.Warn("the replicated state was purged or replaced; reading it again from the start")
			m.retainLostLanes()
			m.table = newTable()
		default:
			entries, err := m.table.committedRedo() // of a commit that counts and may not be completed
			if err != nil {
				return malformedState(err)
			}
			for _, e := range entries {
				m.table.applyEntry(e)
			}
			return nil
		}
	}
}

// retainLostLanes moves the lanes of the purged state to lostLanes.
func (m *mirror) retainLostLanes() {
	c, err := m.table.decodeContent()
	if err != nil {
		return // what was stored was not a state
	}
	m.recordSeen(c)
	for _, l := range c.lanes {
		m.lostLanes[sinkLane{l.sink, l.lane}] = l.tail
	}
}

// tailStart returns the lanes of a sink that have to be fenced, each with the tail that has to be read.
func (m *mirror) tailStart(name string, c stateContent) tailStart {
	lanes := map[sinks.Lane]sinks.Tail{}
	for l, tail := range m.lostLanes {
		if l.sink == name {
			lanes[l.lane] = tail
		}
	}
	for _, l := range c.lanes {
		if l.sink == name {
			lanes[l.lane] = l.tail
		}
	}
	return tailStart{lanes, c.carried[name]}
}

// RefusedError is returned for a state that this process must not use. It persists until an operator acts.
type RefusedError struct {
	Reason string
	Remedy string
}

func (e *RefusedError) Error() string { return e.Reason + ": " + e.Remedy }

// Problem is what the error stands for.
func (e *RefusedError) Problem() condition.Problem {
	return condition.Problem{Code: condition.StateRefused, Cause: e.Reason, Remedy: e.Remedy}
}

func malformedState(err error) error {
	return &RefusedError{
		Reason: "the stored entries are not a replicated state: " + err.Error(),
		Remedy: "give the state a topic or stream of its own, or empty it with exporter state reset",
	}
}

// validate refuses a state of another deployment, of another Lease, of another cluster (each "" if not known), of another
// name of the cluster, or of a newer format.
func (o *Options) validate(c *stateContent, deployment, cluster string) error {
	m, lease := c.meta, o.Lease
	switch {
	case m.version > Version:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state has format %d, written by a newer exporter; this one knows format %d", m.version, Version),
			Remedy: "run the newer exporter, or give this one another state.name",
		}
	case deployment != "" && c.deployment.id != "" && deployment != c.deployment.id:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state belongs to %s, and this exporter is of deployment %s", c.describeOwner(), deployment),
			Remedy: "give each deployment a state.name of its own; to hand the state to this deployment, stop the other one and run " +
				"exporter state reset; to let this exporter continue the other deployment, delete its journal",
		}
	case m.version == 0:
		return nil
	case m.lease != "" && lease != "" && m.lease != lease:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state belongs to the exporters of the Lease %s, last %q, and this one competes for %s",
				m.lease, m.owner.Identity, lease),
			Remedy: "give each deployment a state.name of its own; where only the Lease was renamed, run once without election",
		}
	case cluster != "" && m.cluster != "" && cluster != m.cluster:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state is of the cluster %s, and this one is %s", m.cluster, cluster),
			Remedy: "give each cluster a state.name of its own, or empty it with exporter state reset",
		}
	case c.name != nil && cmp.Or(*c.name, m.cluster) != cmp.Or(o.ClusterName, m.cluster):
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state was written under the cluster name %q, and cluster.name is %q: the keys and "+
				"IDs of all records begin with it", cmp.Or(*c.name, m.cluster), cmp.Or(o.ClusterName, m.cluster)),
			Remedy: "set cluster.name back; or, for another name, give the exporters another state.name and new journals: everything " +
				"is sent again under the new name, and what was sent under the old one stays in the destinations",
		}
	}
	return nil
}

// A take-over learns from the tails what the lanes hold beyond the state. Where a resource stays behind that, because it
// cannot be read, the state carries the identities of its records under keyCarried, so that the lanes do not have to be read
// from there again, however long that lasts. A record is removed once the state has the object in that version or a later
// one, and all of them once the positions of the resource have passed them.

// tailStart is where a take-over starts to read the tails of a sink, and what it knows of the messages before that.
type tailStart struct {
	lanes   map[sinks.Lane]sinks.Tail
	carried []carriedChunk
}

// carriedChunk is a part of what the state carries of a resource for a sink.
type carriedChunk struct{ resource, value string }

// carriedChunkBits is the number of bits of a digest that select the chunk. A chunk, which is one entry, is written again
// when a record of it changes.
const carriedChunkBits = 12

func carriedChunkOf(d digest) int {
	return int(binary.BigEndian.Uint16(d[:]) >> (16 - carriedChunkBits))
}

// Bits of the first byte of a carried object.
const (
	carriedDeleted = 1 << iota
	carriedNewest  // the destination holds no newer object under its key
)

// encodeCarried returns what a successor has to know of the records of a resource, in chunks by number: the number of IDs
// and their digests, and for each object flags, its destination, its key, and its identity in the form of a known object.
func (t *tail) encodeCarried(resource string) map[int][]byte {
	ids, objects := map[int][][]byte{}, map[int][][]byte{}
	for id, of := range t.exact {
		if of == resource {
			ids[carriedChunkOf(id)] = append(ids[carriedChunkOf(id)], slices.Clone(id[:]))
		}
	}
	for place, byUID := range t.objects {
		if place.resource != resource {
			continue
		}
		n := carriedChunkOf(keyDigest(place.resource, place.key))
		for uid, o := range byUID {
			objects[n] = append(objects[n], t.encodeCarriedObject(place, uid, o))
		}
	}
	chunks := map[int][]byte{}
	for _, part := range []map[int][][]byte{ids, objects} {
		for n := range part {
			slices.SortFunc(ids[n], bytes.Compare)
			slices.SortFunc(objects[n], bytes.Compare)
			b := binary.AppendUvarint(nil, uint64(len(ids[n])))
			chunks[n] = append(append(b, bytes.Join(ids[n], nil)...), bytes.Join(objects[n], nil)...)
		}
	}
	return chunks
}

func (t *tail) encodeCarriedObject(place emittedRef, uid string, o liveObject) []byte {
	var flags byte
	at := objectAtDestination{keyDigest(place.resource, place.key), t.destinations[place.destination]}
	if newest, ok := t.newest[at]; ok && newest.uid == digestOf(uid) {
		flags |= carriedNewest
		o.version, o.deleted = strconv.FormatUint(newest.version, 10), newest.deleted // versions of a restored cluster go back
	}
	if o.deleted {
		flags |= carriedDeleted
	}
	known := form.EncodeValue(nil, event.CodeKnown, &event.Known{UID: uid, ResourceVersion: o.version})
	c := carriedObject{flags, place.destination, place.key, string(known)}
	return form.EncodeValue(nil, codeCarriedObject, &c)
}

func (t *tail) addCarried(c carriedChunk) error {
	t.highest[c.resource] = max(t.highest[c.resource], 0) // IDs alone have no version, and are released all the same
	return form.DecodeValue("carried records", c.value, func(f *form.Coder, _ *carriedObject) {
		for range f.CodeCount(0, len(digest{})) {
			var id digest
			f.CodeFixed(id[:])
			t.exact[id] = c.resource
		}
		for f.In != "" {
			var o carriedObject
			var known event.Known
			codeCarriedObject(f, &o)
			if form.DecodeValue("known object", o.known, event.CodeKnown, &known) != nil {
				f.Fail()
				return
			}
			t.addCarriedObject(c.resource, o, known)
		}
	}, &carriedObject{})
}

// carriedObject is the stored form of what a tail knows of an object.
type carriedObject struct {
	flags                   byte
	destination, key, known string
}

func codeCarriedObject(f *form.Coder, o *carriedObject) {
	f.CodeByte(&o.flags)
	f.CodeTexts(&o.destination, &o.key, &o.known)
}

func (t *tail) addCarriedObject(resource string, c carriedObject, known event.Known) {
	o := liveObject{known.UID, known.ResourceVersion, c.flags&carriedDeleted != 0, true}
	t.recordObject(emittedRef{c.destination, objectRef{resource, c.key}}, o)
	if version, ordered := parseVersion(o.version); ordered && c.flags&carriedNewest != 0 {
		at := objectAtDestination{keyDigest(resource, c.key), t.destinationNumber(c.destination)}
		t.newest[at] = emittedVersion{digestOf(o.uid), version, o.deleted, true}
	}
}

// copyResource adds the records of a resource to the tail of lanes that were read before.
func (t *tail) copyResource(to *tail, resource string) {
	for id, of := range t.exact {
		if of == resource {
			to.exact[id] = of
		}
	}
	for place, byUID := range t.objects {
		if place.resource != resource {
			continue
		}
		for _, o := range byUID {
			to.recordObject(place, o)
		}
		key := keyDigest(place.resource, place.key)
		newest, ok := t.newest[objectAtDestination{key, t.destinations[place.destination]}]
		at := objectAtDestination{key, to.destinationNumber(place.destination)}
		before, known := to.newest[at]
		if ok && (!known || before.carried && !newest.carried || before.carried == newest.carried && before.version <= newest.version) {
			to.newest[at] = newest
		}
	}
}

// removeUpTo removes the records of an object key that a change, which the state has from now on, contains, and reports
// whether there were any. A deletion that a list revealed has the version of the last state, so only a deletion contains it.
func (t *tail) removeUpTo(ref objectRef, version uint64, deleted bool) (removed bool) {
	for destination := range t.destinations {
		byUID := t.objects[emittedRef{destination, ref}]
		maps.DeleteFunc(byUID, func(_ string, o liveObject) bool {
			at, ordered := parseVersion(o.version)
			removes := ordered && (at < version || at == version && (deleted || !o.deleted))
			removed = removed || removes
			return removes
		})
	}
	return removed
}

// carryRecords replaces what the state carries of a resource for a sink.
func (p *checkpointer) carryRecords(sink, resource string, chunks map[int][]byte) {
	known, ok := p.resources.byName[resource]
	if !ok {
		return // it was removed with all that the state had of it
	}
	keyOf := func(n int) []byte { return encodeKey(keyCarried, known.number, sink, "/", strconv.Itoa(n)) }
	p.batch.removeMatching(encodeKey(keyCarried, known.number, sink, "/"), func(rest string) bool {
		n, err := strconv.Atoi(rest)
		return err != nil || chunks[n] == nil
	})
	for n, chunk := range chunks {
		p.batch.setIfChanged(keyOf(n), chunk)
	}
}
