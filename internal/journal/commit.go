package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
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
	b := &writeBatch{Batch: c.store.db.NewBatch(), encoder: encoder}
	g := &group{
		batch: b, log: c.log.newWrite(b), known: c.known.newWrite(b), sinks: c.sinks.newWrite(b),
		deadLetters: c.deadLetters.newWrite(b),
	}
	defer g.batch.Close()
	refused := make([]error, len(taken))
	for i, q := range taken {
		refused[i] = q.request(g)
	}
	g.log.sealFrame()
	g.known.writeResources()
	lows, cursors := map[string]uint64{}, g.sinks.allCursors()
	for name, s := range cursors {
		lows[name] = s.cursor.Low
	}
	_, low := slowestOf(cursors, nil) // 0 without a declared sink: nothing is settled then
	if err := g.log.trimSettled(low, c.space.changeCapacity(), c.space.isDiskLow()); err != nil {
		return c.store.checkCorruption("trim", err)
	}
	written := !g.batch.Empty()
	if written {
		g.batch.putKey(codec.KeyWrites, codec.EncodeNumber(c.view.writes+1)) // only this goroutine changes it
		if err := c.store.applyBatch(g.batch.Batch); err != nil {
			return err
		}
		// Noted before the group is visible: whatever was visible is missed at the next start if a damaged log lacks it.
		c.store.ackFile.NoteWrite(c.view.writes+1, codec.EncodeLows(lows))
	}
	if written || len(taken) > 0 {
		c.publishGroup(g, written)
		c.queue.releaseCommitted(taken)
		c.changed.notifyAll()
	}
	if end := g.log.extent.endBytes; end-c.space.checkedAt > spaceCheckBytes {
		c.space.checkedAt = end
		c.space.checkDisk()
	}
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
		c.identity.setRecovery(nil)
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

func (b *writeBatch) removePrefix(prefix []byte) {
	_ = b.Batch.DeleteRange(prefix, codec.KeyAfterPrefix(prefix), nil)
}

// ErrLocked is that of package disk: another process has the journal's directory. The caller ends.
var ErrLocked = disk.ErrLocked

// ErrFormatVersion is returned for a journal of an older or newer format version. The text names the version found and the
// remedy. The store is left as it is; the caller ends.
var ErrFormatVersion = errors.New("journal has another format version")

// versionRemedy ends the text of every ErrFormatVersion.
const versionRemedy = "delete the journal directory and start again: the new start lists every resource and sinks receive " +
	"all objects as a snapshot; changes that were not delivered yet, and dead letters, are lost"

// ErrBroken is returned when stored bytes are not what was written. The store of a running exporter is marked, so that the
// next Open moves it aside and creates an empty one; the caller ends. [OpenOffline] and [EditStopped], which open the
// journal of a stopped exporter, mark nothing.
var ErrBroken = errors.New("journal is broken")

// Recovery describes a store that Open could not use and replaced.
type Recovery = codec.Recovery

const (
	brokenPrefix = "store.broken" // of the name of a store that was moved aside; its time follows
	contentsPart = "; contents: " // in the reason, before what describeContents returns
	earlierPart  = "; the store that was set aside before is deleted; contents: "
	brokenMarker = "BROKEN"  // file in a store that the next Open has to move aside; its content is the reason
	maxMarker    = 256 << 10 // bytes of the marker: the reason names every sink
)

func contentsOf(reason string) string {
	_, contents, described := strings.Cut(reason, contentsPart)
	contents, _, _ = strings.Cut(contents, earlierPart)
	if !described {
		return contentsUnknown
	}
	return contents
}

// checkVersion refuses a store of any other format version than the one this exporter reads and writes. There is no
// conversion between versions. Bytes that are no version at all are malformed, so that the store is moved aside.
func checkVersion(dir string, stored []byte) error {
	version, ok := strings.CutPrefix(string(stored), codec.VersionPrefix)
	switch {
	case version == codec.Version:
		return nil
	case !ok:
		return fmt.Errorf("%w: format version %.40q", form.ErrMalformed, stored)
	}
	return fmt.Errorf("%w: %s has version %.20q, this exporter reads version %q only; %s", ErrFormatVersion, dir, version, codec.Version,
		versionRemedy)
}

// classifyOpenError decides whether an error at opening means that the store is broken and has to be moved aside. If it does
// not, the store has another version or the environment is at fault, and the returned error has the remedy.
func classifyOpenError(dir string, err error) (_ error, broken bool) {
	var errno syscall.Errno
	switch {
	case errors.Is(err, ErrFormatVersion), errors.As(err, new(*RenamedError)):
		return err, false
	case disk.IsOutOfSpace(err):
		return fmt.Errorf("journal: no space to open %s: free space or enlarge the volume: %w", dir, err), false
	case errors.Is(err, errStoreFailed):
		return err, false // Pebble still runs and holds its lock in this process; the next start can move the store aside
	case strings.Contains(err.Error(), "unknown format major version"):
		return fmt.Errorf("%w: %s was written with a newer store library (%w); %s", ErrFormatVersion, dir, err, versionRemedy), false
	case errors.Is(err, ErrBroken), errors.Is(err, form.ErrMalformed), pebble.IsCorruptionError(err), errors.Is(err, fs.ErrNotExist):
		return err, true
	case errors.As(err, &errno):
		return fmt.Errorf("journal: cannot open %s: %w", dir, err), false
	}
	return err, true
}

// moveStoreAside renames the store. Stores that were moved aside earlier are removed: they would fill the disk (I6).
func moveStoreAside(fsys vfs.FS, dir, reason string, now time.Time, logger *slog.Logger) (to string, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return "", fmt.Errorf("journal: cannot list %s: %w", dir, err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, brokenPrefix) {
			continue
		}
		old := fsys.PathJoin(dir, name)
		had, _ := brokenReason(fsys, old)
		if err := fsys.RemoveAll(old); err != nil {
			return "", fmt.Errorf("journal: cannot remove the older broken store %s: %w", old, err)
		}
		logger.Warn("journal: removed an older broken store", "path", old, "contents", contentsOf(had))
	}
	to = fsys.PathJoin(dir, brokenPrefix+now.UTC().Format("-20060102T150405.000Z"))
	if err := fsys.Rename(fsys.PathJoin(dir, storeName), to); err != nil {
		return "", fmt.Errorf("journal: cannot move the broken store aside: %w", err)
	}
	if err := disk.SyncDir(fsys, dir); err != nil {
		return "", err
	}
	logger.Error("journal was broken and is started afresh; a gap will be announced", "code", string(condition.JournalRecovered), "reason", reason, "movedTo", to)
	return to, nil
}

// removeBrokenStores deletes the stores that were moved aside, and returns how many there were.
func removeBrokenStores(fsys vfs.FS, dir string) (n int, err error) {
	names, err := fsys.List(dir)
	for _, name := range names {
		if err == nil && strings.HasPrefix(name, brokenPrefix) {
			err = fsys.RemoveAll(fsys.PathJoin(dir, name))
			n++
		}
	}
	return n, err
}

// lastRecovery describes the store that was moved aside last; nil when none was.
func lastRecovery(fsys vfs.FS, dir string) (*Recovery, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("journal: cannot list %s: %w", dir, err)
	}
	last := ""
	for _, name := range names {
		if strings.HasPrefix(name, brokenPrefix) {
			last = max(last, name)
		}
	}
	if last == "" {
		return nil, nil
	}
	moved := fsys.PathJoin(dir, last)
	reason, _ := brokenReason(fsys, moved)
	return &Recovery{Reason: reason, MovedTo: moved}, nil
}

// markBroken makes the next Open move the store in dir aside.
func markBroken(fsys vfs.FS, dir, reason string) error {
	return writeMarker(fsys, dir, brokenMarker, reason)
}

// writeMarker writes a file in a store that means something by being there.
func writeMarker(fsys vfs.FS, dir, name, content string) error {
	f, err := fsys.Create(fsys.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(content))
	return errors.Join(err, f.Sync(), f.Close(), disk.SyncDir(fsys, dir))
}

// brokenReason reads what markBroken wrote.
func brokenReason(fsys vfs.FS, dir string) (string, bool) {
	f, err := fsys.Open(fsys.PathJoin(dir, brokenMarker))
	if err != nil {
		return "", false
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxMarker)) // a marker with unreadable content still marks the store
	return string(b), true
}

// firstLine is the first line of an error, at most 400 bytes of it.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if len(line) > 400 {
		line = strings.ToValidUTF8(line[:400], "")
	}
	return line
}
