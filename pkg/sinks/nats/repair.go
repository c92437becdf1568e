package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// bucketRepair purges, at the end of a snapshot, the keys of a bucket that the snapshot lacks (nats.repair in mode kv).
type bucketRepair struct {
	cfg      Config
	log      *slog.Logger
	subject  *sinks.Template
	features *streamFeatures
	end      *streamEnd
	fence    *fence

	mu             sync.Mutex
	snapshotStarts map[string]uint64 // last sequence of the bucket when a snapshot began that has not ended
}

// publishFunc publishes messages of a lane and returns how many of them, from the first on, are stored.
type publishFunc func(ctx context.Context, l *connection.Link, lane sinks.Lane, batch []sinks.Message) (int, error)

// publish publishes messages and handles the beginnings and ends of snapshots among them. All messages before the end of a
// snapshot are stored when it is handled, because all changes share one lane.
func (r *bucketRepair) publish(ctx context.Context, l *connection.Link, lane sinks.Lane, batch []sinks.Message,
	publish publishFunc) (int, error) {
	for done := 0; ; done++ {
		next := done
		for next < len(batch) && batch[next].Change.Type != event.SnapshotBegin && batch[next].Change.Type != event.SnapshotEnd {
			next++
		}
		if next > done {
			n, err := publish(ctx, l, lane, batch[done:next])
			if done += n; err != nil {
				return done, err
			}
		}
		if done == len(batch) {
			return done, nil
		}
		if err := r.handleSnapshotRecord(ctx, l, lane, batch[done].Change); err != nil {
			return done, err
		}
	}
}

// handleSnapshotRecord records the end of the bucket when a snapshot begins, and purges at its end the keys that were not
// written since.
func (r *bucketRepair) handleSnapshotRecord(ctx context.Context, l *connection.Link, lane sinks.Lane, c *event.Change) error {
	id := c.Key() + " " + c.Snapshot.ID
	if c.Type == event.SnapshotBegin {
		found, err := r.cfg.streamClient(l).RequireInfo(ctx)
		if err == nil {
			r.setStart(id, found.State.LastSeq)
		}
		return err
	}
	start, known := r.startOf(id)
	if !known || lane != singleLane {
		r.log.Warn("bucket not repaired: the snapshot began before this process or before a loss, or the server refuses a "+
			"subject; stale keys remain",
			"bucket", r.cfg.Bucket, "resource", c.Resource.String(), "namespace", c.Namespace)
		return nil
	}
	if err := r.fence.checkOwnership(ctx, l, math.MaxUint64); err != nil {
		return err
	}
	purged, err := r.purgeStaleKeys(ctx, l, snapshotKeyPattern(r.subject, c), start)
	if err != nil {
		return fmt.Errorf("repair bucket %q: %w", r.cfg.Bucket, err)
	}
	r.removeStart(id)
	r.log.Info("bucket repaired: stale keys purged", "bucket", r.cfg.Bucket,
		"resource", c.Resource.String(), "namespace", c.Namespace, "keys", purged)
	return nil
}

func (r *bucketRepair) setStart(id string, sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapshotStarts[id] = sequence
}

func (r *bucketRepair) startOf(id string) (sequence uint64, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sequence, known = r.snapshotStarts[id]
	return sequence, known
}

func (r *bucketRepair) removeStart(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.snapshotStarts, id)
}

// forgetSnapshots removes the start of all snapshots: a recreated stream numbers its messages from 1 again.
func (r *bucketRepair) forgetSnapshots() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.snapshotStarts)
}

// snapshotKeyPattern returns the wildcard subject of all objects in the scope of a snapshot record.
func snapshotKeyPattern(subject *sinks.Template, c *event.Change) string {
	const mark = "\x00"
	all := *c
	all.Name, all.Type, all.Resource.Version = mark, mark, mark
	if all.Namespace == "" {
		all.Namespace = mark
	}
	filled := string(subject.AppendName(nil, &all, func(dst []byte, token string) []byte {
		if token == mark {
			return append(dst, mark...)
		}
		return AppendToken(dst, token)
	}))
	tokens := strings.Split(filled, ".")
	for i, token := range tokens {
		if strings.Contains(token, mark) {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// purgeStaleKeys purges the keys that were not written after the sequence start.
func (r *bucketRepair) purgeStaleKeys(ctx context.Context, l *connection.Link, keys string, start uint64) (purged int,
	err error) {
	js, err := jetstream.New(l.Conn())
	if err != nil {
		return 0, err
	}
	consumer, err := js.OrderedConsumer(ctx, r.cfg.Stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{keys}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, HeadersOnly: true,
	})
	if err != nil {
		return 0, err
	}
	left := uint64(0)
	if info := consumer.CachedInfo(); info != nil {
		left = info.NumPending
	}
	reading, err := consumer.Messages()
	if err != nil {
		return 0, err
	}
	defer reading.Stop()
	for left > 0 {
		m, meta, err := r.readNextKey(ctx, reading)
		if err != nil {
			return purged, err
		}
		left = meta.NumPending
		if meta.Sequence.Stream > start || m.Headers().Get(headerOperation) != "" {
			continue
		}
		if err := r.purgeKey(ctx, l, m.Subject(), meta.Sequence.Stream); err != nil {
			return purged, err
		}
		purged++
	}
	return purged, nil
}

// readNextKey waits for the next key no longer than ackTimeout: the bucket may have been deleted, or the last key may have
// expired.
func (r *bucketRepair) readNextKey(ctx context.Context, reading jetstream.MessagesContext) (jetstream.Msg, *jetstream.MsgMetadata, error) {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.AckTimeout)
	defer cancel()
	m, err := reading.Next(jetstream.NextContext(bounded))
	switch {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case bounded.Err() != nil:
		return nil, nil, fmt.Errorf("no key received within %v", r.cfg.AckTimeout)
	case err != nil:
		return nil, nil, err
	}
	meta, err := m.Metadata()
	return m, meta, err
}

// purgeKey writes the purge marker of a key, unless the key has another value by now.
func (r *bucketRepair) purgeKey(ctx context.Context, l *connection.Link, subject string, sequence uint64) error {
	r.end.wroteByID.Store(true) // the marker moves the end of the stream, and names no offset
	header := nats.Header{
		headerOperation: {operationPurge}, nats.MsgRollup: {nats.MsgRollupSubject},
		nats.ExpectedStreamHdr: {r.cfg.Stream}, nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(sequence, 10)},
	}
	if r.features.acceptsTTL.Load() {
		header[nats.MsgTTLHdr] = []string{purgeMarkerTTL}
	}
	a, err := l.Request(ctx, &nats.Msg{Subject: subject, Header: header})
	if err != nil {
		return err
	}
	_, err = stream.ParseReceipt(r.cfg.Stream, subject, a)
	var answer *stream.Error
	if errors.As(err, &answer) && answer.ErrCode == stream.CodeWrongLastSequence {
		return nil
	}
	return err
}
