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
	// minCommitInterval and groupTargetBytes make groups under load large enough to compress well and to share an fsync.
	minCommitInterval = 3 * time.Millisecond
	groupTargetBytes  = 256 << 10

	maxGroupBytes = 4 << 20 // uncompressed size at which a group takes no more
	minTrimBytes  = 1 << 20 // stored bytes worth a trim
)

// Run commits what is appended until ctx ends, then commits the rest and returns nil. It returns an error when the store
// cannot go on: the process then ends, and recovers at its next start. A full disk is waited for, except when ctx has
// ended.
func (j *Journal) Run(ctx context.Context) error {
	packer, err := codec.NewFrameEncoder()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, j.fs.StopWaiting)
	defer stop()
	defer j.closeOnce()
	var running sync.WaitGroup
	running.Go(func() { j.commitGroups(ctx, packer) })
	running.Go(func() { j.runTicker(ctx) })
	running.Go(func() { j.runUpkeep(ctx) })
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	select {
	case <-done:
		j.recordAcknowledged()
	case <-j.storeFailure.done:
		// The store may have stopped the committer for good, see storeLogger: it is not waited for.
	}
	return j.storeFailure.current()
}

// commitGroups commits group after group until ctx has ended and the queue is empty, or the store fails. A group is what came
// since the one before was begun, which is some time ago at least: a change that comes after that waits for nobody.
func (j *Journal) commitGroups(ctx context.Context, packer *codec.FrameEncoder) {
	var begun time.Time
	for {
		select {
		case <-j.wake:
		case <-ctx.Done():
		case <-j.storeFailure.done:
			return
		}
		ended := ctx.Err() != nil // asked before the queue is: what was appended until then is committed
		for j.hasWork(ended) {
			j.waitForGroup(ctx, begun.Add(max(minCommitInterval, j.opts.SyncInterval)))
			begun = time.Now()
			if err := j.commitGroup(packer, j.takeRequests()); err != nil {
				j.failStore(j.storeFailure, err)
				return
			}
		}
		if ended {
			return
		}
	}
}

// hasWork says whether there is something to do for the committer; at the end even for who is patient.
func (j *Journal) hasWork(ended bool) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	due := j.trimDue
	j.trimDue = false
	return due || len(j.queue) > 0 || j.lowPriority.isDue(ended)
}

// waitForGroup lets more requests arrive until a moment, unless they are many.
func (j *Journal) waitForGroup(ctx context.Context, until time.Time) {
	wait := time.Until(until)
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		j.mu.Lock()
		enough := j.pending >= j.groupTarget()
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

// groupTarget is how many pending bytes are committed without regard to the pace.
func (j *Journal) groupTarget() int64 {
	if j.opts.SyncInterval > 0 {
		return j.opts.PendingBytes / 2
	}
	return min(groupTargetBytes, j.opts.PendingBytes)
}

// takeRequests removes the requests of the next group from the queue.
func (j *Journal) takeRequests() []queued {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, bytes := 0, int64(0)
	for n < len(j.queue) && bytes < maxGroupBytes {
		bytes += j.queue[n].bytes
		n++
	}
	taken := slices.Concat(j.queue[:n], j.lowPriority.takeBatch())
	clear(j.queue[:n]) // its array lives on; what was committed must not
	if j.queue = j.queue[n:]; len(j.queue) == 0 {
		j.queue = nil
	}
	if len(j.lowPriority.queue) > 0 {
		j.armLowPriority()
	}
	return taken
}

// commitGroup makes one group durable, then visible.
func (j *Journal) commitGroup(packer *codec.FrameEncoder, taken []queued) error {
	g := j.newGroup(packer)
	defer g.batch.Close()
	refused := make([]error, len(taken))
	for i, q := range taken {
		refused[i] = q.request(g)
	}
	g.sealFrame()
	g.writeResources()
	if err := g.trimSettled(); err != nil {
		return j.checkCorruption("trim", err)
	}
	if !g.batch.Empty() {
		g.writes++
		g.setKey(codec.KeyWrites, codec.EncodeNumber(g.writes))
		if err := j.applyBatch(g.batch); err != nil {
			return err
		}
	}
	j.publishGroup(g, taken)
	if g.ext.endBytes-j.spaceCheckedAt > spaceCheckBytes {
		j.spaceCheckedAt = g.ext.endBytes
		j.checkDiskSpace()
	}
	for i, q := range taken {
		if q.done != nil {
			q.done <- refused[i]
		}
	}
	return nil
}

// applyBatch writes a batch and waits for its fsync. Pebble panics where a write of its log fails after an earlier failure.
func (j *Journal) applyBatch(b *pebble.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("commit: %v", r)
		}
	}()
	return j.db.Apply(b, pebble.Sync)
}

// publishGroup lets everybody see a committed group.
func (j *Journal) publishGroup(g *group, taken []queued) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(taken) == 0 && g.writes == j.writes {
		return // time has passed, and that is all
	}
	j.logExtent, j.writes = g.ext, g.writes
	for name, r := range g.resources {
		if j.resources[name] = *r; r.Resource.Resource == "" {
			delete(j.resources, name)
		}
	}
	if g.logCleared {
		j.tail = tail{}
	}
	j.tail.appendFrames(g.frames, j.opts.TailBytes)
	for name, s := range g.sinks {
		if j.sinks[name] = s; !s.declared && s.deadLetters == 0 {
			delete(j.sinks, name)
		}
	}
	for _, q := range taken {
		j.pending -= q.bytes
	}
	j.bodies.removeCommitted(g.bodies)
	if g.gapsEmitted {
		j.recovered = nil
	}
	j.commits++
	j.notifyWaiters()
}

// group is one atomic write in the making. Only the committer uses it.
type group struct {
	j               *Journal
	packer          *codec.FrameEncoder
	batch           *pebble.Batch
	ext             logExtent // as it will be after the commit
	changeCapacity  int64     // for changes
	diskLow         bool      // the disk has no more than the reserve left
	writes          uint64
	openFrame       []*event.Change
	openBytes       int
	frames          []tailFrame
	resources       map[string]*event.StoredResource // those that change, see resource
	sinks           map[string]sinkState             // those that change
	deadLetterSizes map[string]int64                 // stored bytes of dead letters that change, by key
	bodies          []*pendingBody
	gapsEmitted     bool
	logCleared      bool   // there are no changes any more from before
	key             []byte // scratch
	value           []byte // scratch
	compressed      []byte // scratch
}

func (j *Journal) newGroup(packer *codec.FrameEncoder) *group {
	j.mu.Lock()
	defer j.mu.Unlock()
	return &group{
		j: j, packer: packer, batch: j.db.NewBatch(), ext: j.logExtent, changeCapacity: j.changeCapacity(), diskLow: j.diskLow, writes: j.writes,
		resources: map[string]*event.StoredResource{}, sinks: map[string]sinkState{}, deadLetterSizes: map[string]int64{},
	}
}

// setKey and delete add to the batch. Adding to a batch in memory cannot fail.
func (g *group) setKey(key, value []byte) { _ = g.batch.Set(key, value, nil) }
func (g *group) deleteKey(key []byte)     { _ = g.batch.Delete(key, nil) }

// addChange gives a change the next offset.
func (g *group) addChange(c *event.Change) {
	g.openFrame = append(g.openFrame, c)
	g.openBytes += c.Size()
	if g.openBytes >= codec.FrameBytes {
		g.sealFrame()
	}
}

// sealFrame closes the open frame.
func (g *group) sealFrame() {
	if len(g.openFrame) == 0 {
		return
	}
	first := g.ext.newest + 1
	stored := g.packer.Encode(codec.FrameHeader{Count: uint64(len(g.openFrame)), Before: g.ext.endBytes}, g.openFrame)
	key := codec.KeyFrame(first)
	g.setKey(key, stored)
	g.ext.newest += uint64(len(g.openFrame))
	g.ext.endBytes += uint64(len(key) + len(stored))
	g.frames = append(g.frames, newTailFrame(first, g.openFrame, g.openBytes))
	g.openFrame, g.openBytes = nil, 0
}

// sinkState returns the state of a sink as it will be after the commit.
func (g *group) sinkState(name string) sinkState {
	if s, ok := g.sinks[name]; ok {
		return s
	}
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	return g.j.sinks[name]
}

// allSinkStates are the states of all sinks as they will be after the commit.
func (g *group) allSinkStates() map[string]sinkState {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	all := maps.Clone(g.j.sinks)
	maps.Copy(all, g.sinks)
	return all
}

// trimSettled deletes the frames below every cursor, once they are worth it. The newest frame always stays: it says which
// offset comes next.
func (g *group) trimSettled() error {
	_, low := slowestSink(g.allSinkStates()) // without declared sinks nothing is settled
	if passed := g.j.retention.trimLimit(low, time.Now()); g.ext.size() < g.changeCapacity/2 && !g.diskLow {
		low = passed // what is kept for a while gives way before a bound does
	}
	if low < g.ext.oldest || !g.worthTrimming(low) {
		return nil
	}
	it, err := g.j.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return err
	}
	defer it.Close()
	it.SeekLT(codec.KeyFrame(low + 2)) // the frame with the first change that is still wanted, else the newest committed one
	keep, h, err := frameHeaderAt(it)
	if err != nil {
		return err
	}
	if keep <= g.ext.oldest {
		return nil
	}
	_ = g.batch.DeleteRange(codec.KeyFrame(g.ext.oldest), codec.KeyFrame(keep), nil)
	g.ext.oldest, g.ext.startBytes = keep, h.Before
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	g.j.trimmed = keep
	return nil
}

// worthTrimming estimates from the average size of a change whether a trim to low frees enough.
func (g *group) worthTrimming(low uint64) bool {
	held, limit := g.ext.size(), g.changeCapacity
	if held >= limit/2 {
		return true
	}
	average := float64(held) / float64(g.ext.newest-g.ext.oldest+1)
	return average*float64(low-g.ext.oldest+1) >= float64(min(minTrimBytes, limit/8))
}
