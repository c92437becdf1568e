package journal

import (
	"context"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

const (
	// linger is how long the committer waits for company after the first request: it costs an idle change so much
	// latency, and makes groups under load large enough to compress well and to share an fsync.
	linger      = 3 * time.Millisecond
	lingerBytes = 256 << 10 // pending bytes that are company enough

	groupBytes = 4 << 20         // uncompressed size at which a group takes no more
	trimBytes  = 1 << 20         // stored bytes worth a trim
	gaugeEvery = 5 * time.Second // how often the store is asked about its size
)

// Run commits what is appended until ctx ends, then commits the rest and returns nil. It returns an error when the store
// cannot go on: the process then ends, and recovers at its next start. A full disk is waited for, except when ctx has
// ended.
func (j *Journal) Run(ctx context.Context) error {
	packer, err := newPacker()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, j.fs.release)
	defer stop()
	defer j.end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		j.commitUntil(ctx, packer)
	}()
	select {
	case <-done:
	case <-j.failed.ch:
		// The store may have stopped the committer for good, see storeLogger: it is not waited for.
	}
	return j.failed.get()
}

// commitUntil commits group after group until ctx has ended and the queue is empty, or the store fails.
func (j *Journal) commitUntil(ctx context.Context, packer *packer) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-j.wake:
		case <-ctx.Done():
		case <-j.failed.ch:
			return
		}
		for j.queued() {
			j.await(ctx, timer)
			if err := j.commit(packer, j.take()); err != nil {
				j.fail(j.failed, err)
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (j *Journal) queued() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.queue) > 0
}

// await lets more requests arrive, for a short time and as long as they are few.
func (j *Journal) await(ctx context.Context, timer *time.Timer) {
	wait := linger
	if j.opts.Sync == Interval {
		wait = j.opts.SyncInterval
	}
	timer.Reset(wait)
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

// enough is how many pending bytes are committed without waiting for more.
func (j *Journal) enough() int64 {
	if j.opts.Sync == Interval {
		return j.opts.PendingBytes / 2
	}
	return min(lingerBytes, j.opts.PendingBytes)
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
	taken := j.queue[:n:n]
	j.queue = j.queue[n:]
	if len(j.queue) == 0 {
		j.queue = nil
	}
	return taken
}

// commit makes one group durable, then visible.
func (j *Journal) commit(packer *packer, taken []queued) error {
	g := j.newGroup(packer)
	defer g.batch.Close()
	refused := make([]error, len(taken))
	for i, q := range taken {
		refused[i] = q.addTo(g)
	}
	g.seal()
	g.sealResources()
	if err := g.trim(); err != nil {
		return j.checked("trim", err)
	}
	if !g.batch.Empty() {
		if err := j.apply(g.batch); err != nil {
			return err
		}
	}
	j.publish(g, taken)
	j.measure()
	for i, q := range taken {
		if q.done != nil {
			q.done <- refused[i]
		}
	}
	clear(taken) // the queue's array lives on; what was committed must not
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
	j.ext = g.ext
	j.tail.push(g.frames, j.opts.TailBytes)
	for name, s := range g.sinks {
		j.sinks[name] = s
	}
	for _, q := range taken {
		j.pending -= q.bytes
	}
	g.publishResources()
	j.bodies.committed(g.bodies)
	if g.announced {
		j.recovered = nil
	}
	j.counts.commits++
	j.counts.frames += uint64(len(g.frames))
	if j.atBound && j.held() < j.opts.MaxBytes {
		j.atBound = false
		j.opts.Logger.Info("journal has room again")
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

// measure asks the store about its size now and then. The store may be waiting for the disk under its own lock, so this is
// not done under ours.
func (j *Journal) measure() {
	j.mu.Lock()
	due := time.Since(j.counts.measured) >= gaugeEvery
	j.mu.Unlock()
	if !due {
		return
	}
	disk := int64(j.db.Metrics().DiskSpaceUsage())
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts.disk, j.counts.measured = disk, time.Now()
}

// group is one atomic write in the making. Only the committer uses it.
type group struct {
	j         *Journal
	packer    *packer
	batch     *pebble.Batch
	ext       extent // as it will be after the commit
	open      []*event.Change
	openBytes int
	frames    []tailFrame
	resources map[string]event.Resource        // records that may change; a zero one goes
	scopes    map[scopePlace]event.StoredScope // the same; one without ID goes
	sinks     map[string]sinkState             // those that change
	dead      map[string]int64                 // stored bytes of dead letters that change, by key; 0: purged
	bodies    []notedBody
	announced bool
	key       []byte // scratch
	value     []byte // scratch
	packed    []byte // scratch
}

func (j *Journal) newGroup(packer *packer) *group {
	j.mu.Lock()
	defer j.mu.Unlock()
	return &group{
		j: j, packer: packer, batch: j.db.NewBatch(), ext: j.ext,
		resources: map[string]event.Resource{}, scopes: map[scopePlace]event.StoredScope{}, sinks: map[string]sinkState{}, dead: map[string]int64{},
	}
}

// set and delete add to the batch. Adding to a batch in memory cannot fail.
func (g *group) set(key, value []byte) { _ = g.batch.Set(key, value, nil) }
func (g *group) delete(key []byte)     { _ = g.batch.Delete(key, nil) }

// add gives a change the next offset.
func (g *group) add(c *event.Change) {
	g.open = append(g.open, c)
	g.openBytes += c.Size()
	if g.openBytes >= frameBytes {
		g.seal()
	}
}

// seal closes the open frame.
func (g *group) seal() {
	if len(g.open) == 0 {
		return
	}
	first := g.ext.newest + 1
	stored := g.packer.frame(frameHeader{count: uint64(len(g.open)), before: g.ext.end}, g.open)
	key := keyFrame(first)
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

// settledByAll returns the newest offset up to which every declared sink has settled everything. A sink without a cursor
// has settled nothing; without declared sinks nothing is settled either.
func (g *group) settledByAll() uint64 {
	if len(g.j.opts.Sinks) == 0 {
		return 0
	}
	low := g.ext.newest
	for _, name := range g.j.opts.Sinks {
		low = min(low, g.sink(name).cursor.Low)
	}
	return low
}

// trim deletes the frames below every cursor, once they are worth it. The newest frame always stays: it says which
// offset comes next.
func (g *group) trim() error {
	low := g.settledByAll()
	if passed := g.j.retention.passed(low, time.Now()); g.ext.bytes() < g.j.opts.MaxBytes/2 {
		low = passed // what is kept for a while gives way before the bound does
	}
	if low < g.ext.oldest || !g.worthTrimming(low) {
		return nil
	}
	it, err := g.j.iter([]byte{prefixFrame})
	if err != nil {
		return err
	}
	defer it.Close()
	it.SeekLT(keyFrame(low + 2)) // the frame with the first change that is still wanted, else the newest committed one
	keep, h, err := frameAt(it)
	if err != nil {
		return err
	}
	if keep <= g.ext.oldest {
		return nil
	}
	_ = g.batch.DeleteRange(keyFrame(g.ext.oldest), keyFrame(keep), nil)
	g.ext.oldest, g.ext.start = keep, h.before
	return nil
}

// worthTrimming estimates from the average size of a change whether a trim to low frees enough.
func (g *group) worthTrimming(low uint64) bool {
	held, limit := g.ext.bytes(), g.j.opts.MaxBytes
	if held >= limit/2 {
		return true
	}
	average := float64(held) / float64(g.ext.newest-g.ext.oldest+1)
	return average*float64(low-g.ext.oldest+1) >= float64(min(trimBytes, limit/8))
}
