package journal

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// committer turns queued requests into groups, makes each durable with one fsync, and then publishes it to the parts of the
// journal. One goroutine runs it.
type committer struct {
	store       *store
	queue       *queue
	log         *Log
	known       *KnownObjects
	sinks       *SinkLedger
	deadLetters *DeadLetters
	identity    *Identity
	space       *spaceGuard
	changed     *broadcast // notified after every group
	view        *view
}

// view makes a group visible as a whole to readers that combine several parts. It is locked for writing while a group is
// published, and for reading by such readers. Lock order: queue.mu, then view, then the locks of the parts.
type view struct {
	sync.RWMutex
	writes  uint64 // groups ever written to this store
	commits uint64 // groups committed since Open
}

// loadWrites reads how many groups were written, and refuses a store that has lost some which were acknowledged.
func (c *committer) loadWrites() error {
	value, err := c.store.getValue(codec.KeyWrites)
	if err != nil {
		return err
	}
	writes, err := codec.DecodeNumber(value)
	if err != nil {
		return err
	}
	c.view.Lock()
	c.view.writes = writes
	c.view.Unlock()
	if err := c.store.ackFile.CheckWrites(writes); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return nil
}

// run commits group after group until ctx has ended and the queue is empty, or the store fails. A group begins at least
// commitInterval after the one before; after a longer pause a change is committed at once.
func (c *committer) run(ctx context.Context, encoder *codec.FrameEncoder) {
	begun, interval := time.Time{}, minCommitInterval
	for {
		select {
		case <-c.queue.wake:
		case <-ctx.Done():
		case <-c.store.failure.done:
			return
		}
		ended := ctx.Err() != nil // read before the queue is, so that everything appended until then is committed
		for c.queue.hasWork(ended) {
			c.queue.waitForGroup(ctx, begun.Add(max(interval, c.queue.syncInterval)))
			group, now := c.queue.takeGroup(), time.Now()
			interval, begun = commitInterval(sizeOf(group), now.Sub(begun)), now
			if err := c.commitGroup(encoder, group); err != nil {
				c.store.failStore(c.store.failure, err)
				return
			}
		}
		if ended {
			return
		}
	}
}

// commitGroup makes one group durable, then visible.
func (c *committer) commitGroup(encoder *codec.FrameEncoder, taken []queuedRequest) error {
	g := c.newGroup(encoder)
	defer g.batch.Close()
	refused := make([]error, len(taken))
	for i, q := range taken {
		refused[i] = q.request(g)
	}
	g.log.sealFrame()
	g.known.writeResources()
	if err := g.log.trimSettled(g.sinks.lowestCursor(), c.space.changeCapacity(), c.space.isDiskLow()); err != nil {
		return c.store.checkCorruption("trim", err)
	}
	written := !g.batch.Empty()
	if written {
		g.batch.putKey(codec.KeyWrites, codec.EncodeNumber(c.view.writes+1)) // only this goroutine changes it
		if err := c.store.applyBatch(g.batch.Batch); err != nil {
			return err
		}
		// Noted before the group is visible: whatever was visible is missed at the next start if a damaged log lacks it.
		c.store.ackFile.NoteWrite(c.view.writes+1, codec.EncodeLows(g.sinks.lows()))
	}
	if written || len(taken) > 0 {
		c.publishGroup(g, written)
		c.queue.releaseCommitted(taken)
		c.changed.notifyAll()
	}
	c.space.checkDiskAfter(g.log.extent.endBytes)
	for i, q := range taken {
		if q.outcome != nil {
			q.outcome <- refused[i]
		}
	}
	return nil
}

// publishGroup makes a durable group visible. The log comes last: a reader that sees a change also sees what was committed
// with it, without the lock of the view.
func (c *committer) publishGroup(g *group, written bool) {
	c.view.Lock()
	defer c.view.Unlock()
	if written {
		c.view.writes++
	}
	c.view.commits++
	c.known.publishWrite(&g.known)
	c.sinks.publishWrite(&g.sinks)
	c.deadLetters.publishWrite(&g.deadLetters)
	if g.gapsEmitted {
		c.identity.clearRecovery()
	}
	c.log.publishWrite(&g.log)
}

// group is one atomic write in the making. It has one part for each part of the journal, which shows what that part will be
// after the commit. Only the committer's goroutine uses it.
type group struct {
	batch       *writeBatch
	log         logWrite
	known       knownWrite
	sinks       sinkWrite
	deadLetters deadLetterWrite
	gapsEmitted bool // the gaps of a recovery are in the log
}

func (c *committer) newGroup(encoder *codec.FrameEncoder) *group {
	b := &writeBatch{Batch: c.store.db.NewBatch(), encoder: encoder}
	return &group{
		batch: b, log: c.log.newWrite(b), known: c.known.newWrite(b), sinks: c.sinks.newWrite(b),
		deadLetters: c.deadLetters.newWrite(b),
	}
}

// settleSink stores a cursor and dead letters of a sink (I2).
func (g *group) settleSink(sink string, cursor event.Cursor, letters []event.DeadLetter) error {
	err := g.sinks.checkCursor(sink, cursor, &g.log)
	if err == nil {
		err = checkDeadLetters(letters, g.log.log.Newest())
	}
	if err != nil {
		return fmt.Errorf("journal: settle for sink %q: %w", sink, err)
	}
	if err := g.deadLetters.storeLetters(sink, letters); err != nil {
		return err
	}
	g.sinks.setCursor(sink, cursor)
	return nil
}

// writeBatch is the batch of a group, with buffers that its parts share. Adding to a batch in memory cannot fail.
type writeBatch struct {
	*pebble.Batch
	encoder                *codec.FrameEncoder
	key, value, compressed []byte // reused from key to key
}

func (b *writeBatch) putKey(key, value []byte) { _ = b.Set(key, value, nil) }

func (b *writeBatch) removeKey(key []byte) { _ = b.Batch.Delete(key, nil) }

// removePrefix deletes all keys that start with prefix.
func (b *writeBatch) removePrefix(prefix []byte) {
	_ = b.Batch.DeleteRange(prefix, codec.KeyAfterPrefix(prefix), nil)
}
