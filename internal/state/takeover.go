package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// fenceFor bounds how long a take-over waits for one sink.
const fenceFor = 5 * time.Second

// Takeover is what TakeOver needs besides the state.
type Takeover struct {
	// Cluster is the UID of the cluster that is watched, "" where it is not known (yet): the journal then remembers that of
	// the state, and the source compares.
	Cluster string
	// Sinks are all configured sinks by name, nil for one that is not [sinks.Fenced]. None of them publishes yet, and none
	// has a pipeline: how far it got is in the journal afterwards.
	Sinks map[string]sinks.Fenced
}

// Taken is what a process has taken over.
type Taken struct {
	Before  Owner // who worked before; zero where nobody did
	Fresh   bool  // there was no state to take over
	Resumed bool  // the journal had something and goes on as it is; else it is empty, or was emptied and seeded
	Took    time.Duration
	Objects int // known
	// TailSize is how many messages the tails had: each of them may be passed over.
	TailSize int
	// Waiting are the sinks that could not be fenced, and why. Nothing may be published to them before [Keeper.Join] has
	// succeeded; the others do not wait for them.
	Waiting map[string]error

	keeper *Keeper
}

// From says in words where what this process knows comes from.
func (t *Taken) From() string {
	switch {
	case t.Resumed:
		return "its journal"
	case t.Fresh:
		return "nothing: there is no whole state yet"
	}
	return "the replicated state"
}

// Delivered is that of the keeper.
func (t *Taken) Delivered(sink string) func(sinks.Lane, *event.Change) bool {
	return t.keeper.Delivered(sink)
}

// TakeOver makes this process the owner: it claims the state and reads it to its end, fences all sinks, reads the tails of
// their lanes, and begins the journal from all that, unless the state is of this very journal, which then goes on as it is.
// It may be called again after an error. A *RefusedError stays until somebody acts; a *sinks.DeposedError says that another
// process took over meanwhile; anything else passes by itself.
func (k *Keeper) TakeOver(ctx context.Context, t Takeover) (*Taken, error) {
	began := time.Now()
	taken, err := k.takeOver(ctx, t)
	if err != nil {
		if ctx.Err() == nil {
			k.trouble(err)
		}
		return nil, err
	}
	taken.keeper, taken.Took = k, time.Since(began)
	k.show(func(s *Stats) {
		s.Took, s.Active, s.Takeovers = taken.Took, true, s.Takeovers+1
		taken.Objects, taken.TailSize = s.Objects, s.Tail
	})
	return taken, nil
}

func (k *Keeper) takeOver(ctx context.Context, t Takeover) (*Taken, error) {
	c, err := k.current(ctx, t.Cluster) // before anybody is turned away
	if err != nil {
		return nil, err
	}
	c, tails, waiting, err := k.turnAway(ctx, t, c)
	if err != nil {
		return nil, err
	}
	taken := &Taken{Before: c.meta.owner, Waiting: waiting}
	begin, err := k.begin(ctx, c)
	if err != nil {
		return nil, err
	}
	taken.Fresh, taken.Resumed = begin.fresh, begin.resumed
	m := meta{lease: k.opts.Lease, cluster: c.meta.cluster, complete: !begin.base, offset: begin.offset, owner: Owner{
		Identity: k.opts.Owner, Journal: begin.id, Generation: begin.generation, Since: time.Now().UTC(),
	}}
	if t.Cluster != "" {
		m.cluster = t.Cluster
	}
	at := mark{generation: begin.generation, offset: begin.offset, at: time.Now().UTC()}
	k.w = newWriter(m, at, begin.base, c)
	if err := k.noteLost(ctx); err != nil {
		return nil, err
	}
	if err := k.put(ctx, []sinks.StateEntry{{Key: []byte{keyMeta}, Value: m.encode()}}); err != nil {
		return nil, err
	}
	if begin.seeds { // the state names the journal before the journal is that, so one that is not whole is nobody's
		if err := k.seed(ctx, begin, c, tails); err != nil {
			return nil, err
		}
	}
	if err := k.opts.Journal.Settle(ctx, Sink, event.Cursor{Low: max(begin.offset, k.opts.Journal.Oldest()-1)}, nil); err != nil {
		return nil, err
	}
	k.admit(t.Sinks, tails, waiting)
	k.show(func(s *Stats) { s.Owner = m.owner })
	k.showLag()
	return taken, nil
}

// turnAway claims the state, and fences all sinks meanwhile: neither waits for the other. The lanes are those that the state
// named before. A process that still worked may have noted another one until the claim: that sink is fenced once more. What
// is read of tails from places that have moved since is more than it has to be.
func (k *Keeper) turnAway(ctx context.Context, t Takeover, before content) (c content, tails map[string]*tail, waiting map[string]error, err error) {
	fencing, cancel := context.WithCancel(ctx)
	defer cancel()
	lanes := map[string]map[sinks.Lane]sinks.Place{}
	for name := range t.Sinks {
		lanes[name] = k.lanesOf(name, before)
	}
	claimed := make(chan error, 1)
	go func() {
		err := k.store.Claim(ctx, k.claim(""))
		if err != nil {
			err = fmt.Errorf("claim the replicated state: %w", err)
		} else {
			c, err = k.current(ctx, t.Cluster)
		}
		if err != nil {
			cancel()
		}
		claimed <- err
	}()
	tails, waiting, failed := k.fenceAll(fencing, t.Sinks, lanes)
	if err := cmp.Or(<-claimed, failed); err != nil {
		return c, nil, nil, err
	}
	again := map[string]sinks.Fenced{}
	for name, sink := range t.Sinks {
		now := k.lanesOf(name, c)
		for lane := range now {
			if _, ok := lanes[name][lane]; !ok {
				again[name], lanes[name] = sink, now
			}
		}
	}
	more, away, err := k.fenceAll(ctx, again, lanes)
	for name := range again {
		delete(tails, name)
		delete(waiting, name)
	}
	maps.Copy(tails, more)
	maps.Copy(waiting, away)
	return c, tails, waiting, err
}

// current reads the state to its end, and refuses one that cannot be used.
func (k *Keeper) current(ctx context.Context, cluster string) (content, error) {
	if err := k.read(ctx); err != nil {
		return content{}, err
	}
	c, err := k.table.content()
	if err != nil {
		return c, malformed(err)
	}
	return c, k.check(c, cluster)
}

// claim is the right to publish; sink is whose lanes are noted, "" for the store.
func (k *Keeper) claim(sink string) sinks.Claim {
	note := func(ctx context.Context, lanes map[sinks.Lane]sinks.Place) error {
		return k.ask(ctx, func(ctx context.Context) error { return k.note(ctx, sink, lanes) })
	}
	return sinks.Claim{Group: k.opts.Group, Sink: sink, Owner: k.opts.Owner, Note: note}
}

// admit makes sinks members.
func (k *Keeper) admit(all map[string]sinks.Fenced, tails map[string]*tail, waiting map[string]error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Fenced, k.stats.Tail = 0, 0
	for name, sink := range all {
		if sink == nil || waiting[name] != nil {
			delete(k.members, name)
			continue
		}
		k.members[name] = newMember(sink, tails[name])
		k.stats.Fenced += len(tails[name].ends)
		k.stats.Tail += tails[name].size
	}
}

func newMember(sink sinks.Fenced, t *tail) *member {
	m := &member{sink: sink, ends: t.ends, highest: t.highest}
	if t.size > 0 {
		m.delivered.Store(t.delivered)
	}
	return m
}

// fenceAll fences sinks at the same time, and reads their tails. One that is away keeps the others waiting for a moment.
func (k *Keeper) fenceAll(ctx context.Context, all map[string]sinks.Fenced, lanes map[string]map[sinks.Lane]sinks.Place) (map[string]*tail, map[string]error, error) {
	var (
		mu      sync.Mutex
		fencing sync.WaitGroup
	)
	tails, waiting := map[string]*tail{}, map[string]error{}
	for name, sink := range all {
		if sink == nil {
			continue
		}
		fencing.Go(func() {
			t, err := k.fence(ctx, name, sink, lanes[name])
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				waiting[name] = err
				return
			}
			tails[name] = t
		})
	}
	fencing.Wait()
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		var deposed *sinks.DeposedError
		if err := waiting[name]; ctx.Err() != nil || errors.As(err, &deposed) {
			return nil, nil, err
		}
		k.log.Warn("a sink could not be fenced; the others go on without it", "sink", name, "error", waiting[name])
	}
	return tails, waiting, nil
}

// fence fences a sink and reads its tails. A sink that cannot be reached is given up after a while; reading takes its time.
func (k *Keeper) fence(ctx context.Context, name string, sink sinks.Fenced, lanes map[sinks.Lane]sinks.Place) (*tail, error) {
	limited, cancel := context.WithTimeout(ctx, fenceFor)
	defer cancel()
	if err := sink.Fence(limited, k.claim(name), slices.Sorted(maps.Keys(lanes))); err != nil {
		return nil, fmt.Errorf("sink %s: fence: %w", name, err)
	}
	t, err := readTail(ctx, sink, lanes)
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", name, err)
	}
	return t, nil
}

// lanesOf are the lanes of a sink, with the place from which each has to be read.
func (k *Keeper) lanesOf(name string, c content) map[sinks.Lane]sinks.Place {
	lanes := map[sinks.Lane]sinks.Place{}
	for l, place := range k.lost {
		if l.sink == name {
			lanes[l.lane] = place
		}
	}
	for l, number := range k.lanes {
		if l.sink == name {
			lanes[l.lane] = c.lanes[number].place
		}
	}
	return lanes
}

// noteLost notes the lanes of a state that was purged or replaced.
func (k *Keeper) noteLost(ctx context.Context) error {
	for l, place := range k.lost {
		if err := k.note(ctx, l.sink, map[sinks.Lane]sinks.Place{l.lane: place}); err != nil {
			return err
		}
	}
	k.lost = map[sinkLane]sinks.Place{}
	return nil
}

// Join takes a sink in that was made while this process works, or that was Waiting: after Fence and the tails of its lanes.
// It takes the place of one of the same name, which is closed. Run runs. A nil sink is one that is not fenced.
func (k *Keeper) Join(ctx context.Context, name string, sink sinks.Fenced) error {
	if sink == nil {
		k.Leave(name)
		return nil
	}
	var lanes map[sinks.Lane]sinks.Place
	err := k.ask(ctx, func(context.Context) error {
		c, err := k.table.content()
		lanes = k.lanesOf(name, c)
		return err
	})
	if err != nil {
		return err
	}
	t, err := k.fence(ctx, name, sink, lanes)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.members[name] = newMember(sink, t)
	return nil
}

// beginning is how the journal begins.
type beginning struct {
	id         string
	generation uint64
	offset     uint64 // everything up to here is in the state
	base       bool   // the state is begun from the journal: nothing of it is in the state yet
	fresh      bool   // there is no state that counts
	resumed    bool   // the journal goes on
	seeds      bool   // the journal is emptied and seeded; with base by nothing
}

// begin decides what the journal begins with.
func (k *Keeper) begin(ctx context.Context, c content) (b beginning, err error) {
	j := k.opts.Journal
	if b.id, err = j.ID(); err != nil {
		return b, err
	}
	own := generationOf(b.id)
	b.generation = max(c.meta.owner.Generation, own) + 1
	exists, newest := c.meta.version != 0 && c.meta.complete, j.Newest()
	switch {
	case b.id != "" && b.id == c.meta.owner.Journal && exists && c.mark.offset > newest:
		k.log.Warn("the journal is an older copy of itself: it is seeded with the replicated state")
	case b.id != "" && b.id == c.meta.owner.Journal && exists && c.mark.offset+1 >= j.Oldest():
		b.resumed, b.offset = true, c.mark.offset
		return b, nil
	case b.id != "" && own > c.meta.owner.Generation, b.id != "" && b.id == c.meta.owner.Journal:
		if c.meta.version != 0 && exists {
			k.log.Warn("the replicated state is older than the journal, which was written after it: it is begun again from the journal")
		}
		b.resumed, b.base, b.fresh = true, true, !exists
		return b, nil
	case exists:
	case b.id == "" && c.meta.version == 0:
		b.base, b.fresh, b.resumed = true, true, newest > 0
		b.id = newID(b.generation)
		return b, j.SetID(ctx, b.id)
	}
	b.fresh, b.base, b.seeds = !exists, !exists, true
	b.id, b.offset = newID(b.generation), newest
	return b, nil
}

// newID is the ID of a journal that begins with a take-over.
func newID(generation uint64) string { return strconv.FormatUint(generation, 10) + "." + rand.Text() }

func generationOf(id string) uint64 {
	text, _, _ := strings.Cut(id, ".")
	n, _ := strconv.ParseUint(text, 10, 64) // an ID that is none is of no generation
	return n
}

// seed empties the journal and fills it with the state, and what the tails know beyond it.
func (k *Keeper) seed(ctx context.Context, b beginning, c content, tails map[string]*tail) error {
	lost := ""
	if b.base {
		c, tails, lost = content{}, nil, "the replicated state did not hold the first snapshot of whoever worked before"
	}
	numbers := map[string]uint64{}
	s := journal.Seed{ID: b.id, Cluster: c.meta.cluster, Lost: lost}
	for n, r := range c.resources {
		numbers[r.String()] = n
		s.Resources = append(s.Resources, event.StoredResource{Resource: r, Scopes: c.scopes[n]})
	}
	beyond, err := toldBeyond(tails, func(p objectPlace) (event.Known, error) {
		if n, ok := numbers[p.resource]; ok {
			return k.table.get(n, p.key)
		}
		return event.Known{}, nil
	})
	if err != nil {
		return malformed(err)
	}
	s.Known = func(each func(string, event.Known) error) error {
		if len(c.resources) == 0 {
			return nil
		}
		err := k.table.eachKnown(func(n uint64, known event.Known) error {
			name := c.resources[n].String()
			place := objectPlace{name, known.Key}
			known.Told = beyond[place]
			delete(beyond, place)
			return each(name, known)
		})
		if err != nil {
			return err
		}
		for place, told := range beyond {
			// A resource that the state does not have begins with a snapshot, which says what is gone by not naming it.
			if _, ok := numbers[place.resource]; !ok {
				continue
			}
			if err := each(place.resource, event.Known{Key: place.key, Told: told}); err != nil {
				return err
			}
		}
		return nil
	}
	return k.opts.Journal.Seed(ctx, s)
}
