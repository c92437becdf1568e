package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// Modes of delivery, see [Config.Mode].
const (
	modeJetStream = "jetstream"
	modeCore      = "core"
	modeKV        = "kv"
)

// Names of NATS key-value buckets (ADR-8): the stream behind a bucket, its subjects, and what a purge marker is.
const (
	bucketStream   = "KV_"
	bucketSubject  = "$KV."
	operationPurge = "PURGE"
	purgeMarkerTTL = "24h"
)

// StreamName is the stream that keeps the changes: the one behind the bucket in mode kv, none in mode core.
func (c Config) StreamName() string {
	if c.Mode == modeKV {
		return bucketStream + c.Bucket
	}
	return c.Stream
}

// SubjectTemplate is the template of the subjects messages go to, with the bucket's part in mode kv.
func (c Config) SubjectTemplate() string {
	if c.Mode == modeKV {
		return bucketSubject + c.Bucket + "." + c.Subject
	}
	return c.Subject
}

// KeepsRows says that NATS keeps one value for each key, the state of an object: mode kv.
func (c Config) KeepsRows() bool { return c.Mode == modeKV }

// KeepsNothing says that NATS keeps nothing: mode core.
func (c Config) KeepsNothing() bool { return c.Mode == modeCore }

// setPurgeMarker makes the message of a deleted object the purge marker of its key, which takes the place of all the key had.
func (m *message) setPurgeMarker(c *event.Change, expires bool) (marked bool) {
	if c.Type != event.Deleted {
		delete(m.Header, headerOperation)
		delete(m.Header, nats.MsgRollup)
		delete(m.Header, nats.MsgTTLHdr)
		return false
	}
	if m.nativeHeaders != nil { // there is no payload
		m.setNativeHeaders(c, true)
	}
	m.Header[headerOperation] = []string{operationPurge}
	m.Header[nats.MsgRollup] = []string{nats.MsgRollupSubject}
	if expires {
		m.Header[nats.MsgTTLHdr] = []string{purgeMarkerTTL}
	}
	return true
}

// publishCore sends a batch in mode core and waits until the server has read it. Nobody says whether anyone listens.
func (s *Sink) publishCore(ctx context.Context, l *connection.Link, batch []sinks.Message) (int, error) {
	before := l.LastError()
	msg := newMessage(s.cfg, s.format)
	n, err := 0, error(nil)
	for n < len(batch) && err == nil {
		if err = s.publishCoreMessage(ctx, l, msg, batch[n]); err == nil {
			n++
		}
	}
	if flushErr := l.Flush(ctx, before); flushErr != nil {
		n, err = 0, flushErr
	}
	return n, err
}

// publishCoreMessage hands one change to the client library.
func (s *Sink) publishCoreMessage(ctx context.Context, l *connection.Link, msg *message, m sinks.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	buffer := s.encodeChange(msg, m)
	defer s.releaseBuffer(msg, buffer)
	return l.Publish(ctx, msg.Msg)
}

// validateMode checks what the mode needs and what means nothing in it.
func (c Config) validateMode() error {
	if err := checkOneOf(c.Mode, modeJetStream, modeCore, modeKV); err != nil {
		return atPath("mode", err)
	}
	var errs []error
	unused := func(path string, set bool, why string) {
		if set {
			errs = append(errs, atPath(path, fmt.Errorf("means nothing in mode %s: %s", c.Mode, why)))
		}
	}
	if c.Mode != modeKV {
		unused("repair", c.Repair, "it is for mode kv")
	}
	switch c.Mode {
	case modeJetStream:
		errs = append(errs, atPath("stream", validateStream(c.Stream)))
		unused("bucket", c.Bucket != "", "it is for mode kv")
	case modeCore:
		unused("stream", c.Stream != "", "core NATS keeps nothing")
		unused("bucket", c.Bucket != "", "core NATS keeps nothing")
		unused("exact", c.Exact, "core NATS keeps nothing")
		unused("create.enabled", c.Create.Enabled, "core NATS keeps nothing")
	case modeKV:
		errs = append(errs, atPath("bucket", validateBucket(c.Bucket)))
		unused("stream", c.Stream != "", "the bucket has its own")
		if c.Create.MaxAge != 0 {
			errs = append(errs, atPath("create.maxAge", errors.New("objects that do not change would vanish from the bucket; leave it out in mode kv")))
		}
	}
	return errors.Join(errs...)
}

func validateBucket(name string) error {
	if name == "" {
		return errors.New("required in mode kv; the name of a key-value bucket")
	}
	if i := slices.IndexFunc([]byte(name), func(b byte) bool { return !isPlainByte(b) }); i >= 0 {
		return fmt.Errorf("%q has %q at position %d; a bucket's name has letters, digits, _ and - only", name, name[i], i+1)
	}
	return nil
}
