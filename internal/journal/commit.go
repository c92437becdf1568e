package journal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

const (
	// busyPace and enoughBytes make groups under load large enough to compress well and to share an fsync.
	busyPace    = 3 * time.Millisecond
	enoughBytes = 256 << 10

	groupBytes = 4 << 20 // uncompressed size at which a group takes no more
	trimBytes  = 1 << 20 // stored bytes worth a trim
)

// Run commits what is appended until ctx ends, then commits the rest and returns nil. It returns an error when the store
// cannot go on: the process then ends, and recovers at its next start. A full disk is waited for, except when ctx has
// ended.
func (j *Journal) Run(ctx context.Context) error {
	packer, err := codec.NewPacker()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, j.fs.Release)
	defer stop()
	defer j.end()
	var running sync.WaitGroup
	running.Go(func() { j.commitUntil(ctx, packer) })
	running.Go(func() { j.tick(ctx) })
	running.Go(func() { j.upkeep(ctx) })
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	select {
	case <-done:
		j.noteAcknowledged()
	case <-j.failed.ch:
		// The store may have stopped the committer for good, see storeLogger: it is not waited for.
	}
	return j.failed.get()
}

// commitUntil commits group after group until ctx has ended and the queue is empty, or the store fails. A group is what came
// since the one before was begun, which is some time ago at least: a change that comes after that waits for nobody.
func (j *Journal) commitUntil(ctx context.Context, packer *codec.Packer) {
	var begun time.Time
	for {
		select {
		case <-j.wake:
		case <-ctx.Done():
		case <-j.failed.ch:
			return
		}
		ended := ctx.Err() != nil // asked before the queue is: what was appended until then is committed
		for j.work(ended) {
			j.await(ctx, begun.Add(max(busyPace, j.opts.SyncInterval)))
			begun = time.Now()
			if err := j.commit(packer, j.take()); err != nil {
				j.fail(j.failed, err)
				return
			}
		}
		if ended {
			return
		}
	}
}

// work says whether there is something to do for the committer; at the end even for who is patient.
func (j *Journal) work(ended bool) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	due := j.due
	j.due = false
	return due || len(j.queue) > 0 || j.patient.waits(ended)
}

// await lets more requests arrive until a moment, unless they are many.
func (j *Journal) await(ctx context.Context, until time.Time) {
	wait := time.Until(until)
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		j.mu.Lock()
		enough := j.pending >= j.enough()
		j.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-j.wake:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// enough is how many pending bytes are committed without regard to the pace.
func (j *Journal) enough() int64 {
	if j.opts.SyncInterval > 0 {
		return j.opts.PendingBytes / 2
	}
	return min(enoughBytes, j.opts.PendingBytes)
}

// take removes the requests of the next group from the queue.
func (j *Journal) take() []queued {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, bytes := 0, int64(0)
	for n < len(j.queue) && bytes < groupBytes {
		bytes += j.queue[n].bytes
		n++
	}
	taken := slices.Concat(j.queue[:n], j.patient.take())
	clear(j.queue[:n]) // its array lives on; what was committed must not
	if j.queue = j.queue[n:]; len(j.queue) == 0 {
		j.queue = nil
	}
	if len(j.patient.queue) > 0 {
		j.wait()
	}
	return taken
}

// commit makes one group durable, then visible.
func (j *Journal) commit(packer *codec.Packer, taken []queued) error {
	g := j.newGroup(packer)
	defer g.batch.Close()
	refused := make([]error, len(taken))
	for i, q := range taken {
		refused[i] = q.request(g)
	}
	g.seal()
	g.sealResources()
	if err := g.trim(); err != nil {
		return j.checked("trim", err)
	}
	if !g.batch.Empty() {
		g.writes++
		g.set(codec.KeyWrites, codec.EncodeNumber(g.writes))
		if err := j.apply(g.batch); err != nil {
			return err
		}
	}
	j.publish(g, taken)
	if g.ext.end-j.asked > spaceBytes {
		j.asked = g.ext.end
		j.checkSpace()
	}
	for i, q := range taken {
		if q.done != nil {
			q.done <- refused[i]
		}
	}
	return nil
}

// apply writes a batch and waits for its fsync. Pebble panics where a write of its log fails after an earlier failure.
func (j *Journal) apply(b *pebble.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("commit: %v", r)
		}
	}()
	return j.db.Apply(b, pebble.Sync)
}

// publish lets everybody see a committed group.
func (j *Journal) publish(g *group, taken []queued) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(taken) == 0 && g.writes == j.writes {
		return // time has passed, and that is all
	}
	j.ext, j.writes = g.ext, g.writes
	for name, r := range g.resources {
		if j.resources[name] = *r; r.Resource.Resource == "" {
			delete(j.resources, name)
		}
	}
	if g.emptied {
		j.tail = tail{}
	}
	j.tail.push(g.frames, j.opts.TailBytes)
	for name, s := range g.sinks {
		if j.sinks[name] = s; !s.declared && s.dead == 0 {
			delete(j.sinks, name)
		}
	}
	for _, q := range taken {
		j.pending -= q.bytes
	}
	j.bodies.committed(g.bodies)
	if g.announced {
		j.recovered = nil
	}
	j.commits++
	j.notify()
}

// group is one atomic write in the making. Only the committer uses it.
type group struct {
	j         *Journal
	packer    *codec.Packer
	batch     *pebble.Batch
	ext       extent // as it will be after the commit
	room      int64  // for changes
	scarce    bool   // the disk has no more than the reserve left
	writes    uint64
	open      []*event.Change
	openBytes int
	frames    []tailFrame
	resources map[string]*event.StoredResource // those that change, see resource
	sinks     map[string]sinkState             // those that change
	dead      map[string]int64                 // stored bytes of dead letters that change, by key
	bodies    []*pendingBody
	announced bool
	emptied   bool   // there are no changes any more from before
	key       []byte // scratch
	value     []byte // scratch
	packed    []byte // scratch
}

func (j *Journal) newGroup(packer *codec.Packer) *group {
	j.mu.Lock()
	defer j.mu.Unlock()
	return &group{
		j: j, packer: packer, batch: j.db.NewBatch(), ext: j.ext, room: j.room(), scarce: j.low, writes: j.writes,
		resources: map[string]*event.StoredResource{}, sinks: map[string]sinkState{}, dead: map[string]int64{},
	}
}

// set and delete add to the batch. Adding to a batch in memory cannot fail.
func (g *group) set(key, value []byte) { _ = g.batch.Set(key, value, nil) }
func (g *group) delete(key []byte)     { _ = g.batch.Delete(key, nil) }

// add gives a change the next offset.
func (g *group) add(c *event.Change) {
	g.open = append(g.open, c)
	g.openBytes += c.Size()
	if g.openBytes >= codec.FrameBytes {
		g.seal()
	}
}

// seal closes the open frame.
func (g *group) seal() {
	if len(g.open) == 0 {
		return
	}
	first := g.ext.newest + 1
	stored := g.packer.Frame(codec.FrameHeader{Count: uint64(len(g.open)), Before: g.ext.end}, g.open)
	key := codec.KeyFrame(first)
	g.set(key, stored)
	g.ext.newest += uint64(len(g.open))
	g.ext.end += uint64(len(key) + len(stored))
	g.frames = append(g.frames, newTailFrame(first, g.open, g.openBytes))
	g.open, g.openBytes = nil, 0
}

// sink returns the state of a sink as it will be after the commit.
func (g *group) sink(name string) sinkState {
	if s, ok := g.sinks[name]; ok {
		return s
	}
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	return g.j.sinks[name]
}

// allSinks are the states of all sinks as they will be after the commit.
func (g *group) allSinks() map[string]sinkState {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	all := maps.Clone(g.j.sinks)
	maps.Copy(all, g.sinks)
	return all
}

// trim deletes the frames below every cursor, once they are worth it. The newest frame always stays: it says which
// offset comes next.
func (g *group) trim() error {
	_, low := slowest(g.allSinks()) // without declared sinks nothing is settled
	if passed := g.j.retention.passed(low, time.Now()); g.ext.bytes() < g.room/2 && !g.scarce {
		low = passed // what is kept for a while gives way before a bound does
	}
	if low < g.ext.oldest || !g.worthTrimming(low) {
		return nil
	}
	it, err := g.j.iter([]byte{codec.PrefixFrame})
	if err != nil {
		return err
	}
	defer it.Close()
	it.SeekLT(codec.KeyFrame(low + 2)) // the frame with the first change that is still wanted, else the newest committed one
	keep, h, err := frameAt(it)
	if err != nil {
		return err
	}
	if keep <= g.ext.oldest {
		return nil
	}
	_ = g.batch.DeleteRange(codec.KeyFrame(g.ext.oldest), codec.KeyFrame(keep), nil)
	g.ext.oldest, g.ext.start = keep, h.Before
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	g.j.trimmed = keep
	return nil
}

// worthTrimming estimates from the average size of a change whether a trim to low frees enough.
func (g *group) worthTrimming(low uint64) bool {
	held, limit := g.ext.bytes(), g.room
	if held >= limit/2 {
		return true
	}
	average := float64(held) / float64(g.ext.newest-g.ext.oldest+1)
	return average*float64(low-g.ext.oldest+1) >= float64(min(trimBytes, limit/8))
}
