package nats

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// publishAndRepair publishes messages to a bucket, and at the end of a snapshot purges what it lacks. Everything before the
// end has been stored then, since all changes share one lane.
func (s *Sink) publishAndRepair(ctx context.Context, l *connection.Link, lane sinks.Lane, batch []sinks.Message) (int, error) {
	for done := 0; ; done++ {
		next := done
		for next < len(batch) && batch[next].Change.Type != event.SnapshotBegin && batch[next].Change.Type != event.SnapshotEnd {
			next++
		}
		if next > done {
			n, err := s.publishByMode(ctx, l, lane, batch[done:next])
			if done += n; err != nil {
				return done, err
			}
		}
		if done == len(batch) {
			return done, nil
		}
		if err := s.handleSnapshotRecord(ctx, l, lane, batch[done].Change); err != nil {
			return done, err
		}
	}
}

// handleSnapshotRecord notes where the bucket ended when a snapshot began, and removes at its end what was not written since.
func (s *Sink) handleSnapshotRecord(ctx context.Context, l *connection.Link, lane sinks.Lane, c *event.Change) error {
	id := c.Key() + " " + c.Snapshot.ID
	if c.Type == event.SnapshotBegin {
		found, err := s.streamClient(l).RequireInfo(ctx)
		if err == nil {
			s.mu.Lock()
			s.snapshotStarts[id] = found.State.LastSeq
			s.mu.Unlock()
		}
		return err
	}
	s.mu.Lock()
	began, known := s.snapshotStarts[id]
	s.mu.Unlock()
	if !known || lane != singleLane {
		s.log.Warn("a bucket is not repaired: the snapshot began before this process, or before the bucket went back, or some subject may not be published to; keys that the snapshot lacks stay",
			"bucket", s.cfg.Bucket, "resource", c.Resource.String(), "namespace", c.Namespace)
		return nil
	}
	if err := s.checkOwnership(ctx, l, math.MaxUint64); err != nil {
		return err
	}
	purged, err := s.purgeStaleKeys(ctx, l, s.snapshotKeyPattern(c), began)
	if err != nil {
		return fmt.Errorf("repair bucket %q: %w", s.cfg.Bucket, err)
	}
	s.mu.Lock()
	delete(s.snapshotStarts, id)
	s.mu.Unlock()
	s.log.Info("a bucket is repaired: keys that the snapshot lacks are purged", "bucket", s.cfg.Bucket,
		"resource", c.Resource.String(), "namespace", c.Namespace, "keys", purged)
	return nil
}

// snapshotKeyPattern returns the subject with wildcards that covers all objects that a snapshot speaks of.
func (s *Sink) snapshotKeyPattern(c *event.Change) string {
	const mark = "\x00"
	all := *c
	all.Name, all.Type, all.Resource.Version = mark, mark, mark
	if all.Namespace == "" {
		all.Namespace = mark
	}
	filled := string(s.subject.AppendName(nil, &all, func(dst []byte, token string) []byte {
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

// purgeStaleKeys purges the keys whose newest value was there when the stream ended at a sequence.
func (s *Sink) purgeStaleKeys(ctx context.Context, l *connection.Link, keys string, began uint64) (purged int, err error) {
	js, err := jetstream.New(l.Conn())
	if err != nil {
		return 0, err
	}
	consumer, err := js.OrderedConsumer(ctx, s.cfg.Stream, jetstream.OrderedConsumerConfig{
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
		m, at, err := s.readNextKey(ctx, reading)
		if err != nil {
			return purged, err
		}
		left = at.NumPending
		if at.Sequence.Stream > began || m.Headers().Get(headerOperation) != "" {
			continue
		}
		if err := s.purgeKey(ctx, l, m.Subject(), at.Sequence.Stream); err != nil {
			return purged, err
		}
		purged++
	}
	return purged, nil
}

// readNextKey waits for the next key no longer than ackTimeout: the bucket may have been deleted, or the last key have expired.
func (s *Sink) readNextKey(ctx context.Context, reading jetstream.MessagesContext) (jetstream.Msg, *jetstream.MsgMetadata, error) {
	bounded, cancel := context.WithTimeout(ctx, s.cfg.AckTimeout)
	defer cancel()
	m, err := reading.Next(jetstream.NextContext(bounded))
	switch {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case bounded.Err() != nil:
		return nil, nil, fmt.Errorf("nothing comes within %v", s.cfg.AckTimeout)
	case err != nil:
		return nil, nil, err
	}
	at, err := m.Metadata()
	return m, at, err
}

// purgeKey puts the purge marker of a key behind its value, unless there is another value by now.
func (s *Sink) purgeKey(ctx context.Context, l *connection.Link, subject string, sequence uint64) error {
	s.streamEnd.wroteByID.Store(true)
	header := nats.Header{
		headerOperation: {operationPurge}, nats.MsgRollup: {nats.MsgRollupSubject},
		nats.ExpectedStreamHdr: {s.cfg.Stream}, nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(sequence, 10)},
	}
	if s.acceptsTTL.Load() {
		header[nats.MsgTTLHdr] = []string{purgeMarkerTTL}
	}
	a, err := l.Request(ctx, &nats.Msg{Subject: subject, Header: header})
	if err != nil {
		return err
	}
	_, err = stream.ParseReceipt(s.cfg.Stream, subject, a)
	var said *stream.Error
	if errors.As(err, &said) && said.ErrCode == stream.CodeWrongLastSequence {
		return nil
	}
	return err
}
