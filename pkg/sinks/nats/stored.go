package nats

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// StoredReader reads the stream of a sink back. It has a connection of its own and makes no consumer: it reads by the direct
// access of the stream, where that is allowed, and otherwise message by message.
type StoredReader struct {
	cfg       Config
	connector connector
}

var _ sinks.StoredReader = (*StoredReader)(nil)

// OpenStoredReader returns a reader of the stream, or bucket, in cfg. It opens no connection. The caller closes it.
func OpenStoredReader(cfg Config) (*StoredReader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.SetDefaults()
	cfg.Subject, cfg.Stream = cfg.SubjectTemplate(), cfg.StreamName()
	return &StoredReader{cfg: cfg, connector: connector{cfg: cfg}}, nil
}

// StoredLanes implements [sinks.StoredReader]. A stream is one lane, whatever the target is; so is a bucket, in which newer
// records always replace older ones.
func (r *StoredReader) StoredLanes(ctx context.Context, _ string) ([]sinks.StoredLane, error) {
	found, _, err := r.findStream(ctx)
	if err != nil {
		return nil, err
	}
	c := found.Config
	replaces := c.MaxMsgsPerSubject > 0
	limited := c.MaxAge > 0 || c.Discard == jetstream.DiscardOld && (c.MaxMsgs > 0 || c.MaxBytes > 0)
	return []sinks.StoredLane{{
		Target: r.cfg.Stream, Count: 1, First: int64(found.State.FirstSeq), End: int64(found.State.LastSeq) + 1,
		Replaces: replaces, Truncated: found.State.FirstSeq > 1 && (!replaces || limited),
	}}, nil
}

// findStream looks the stream up.
func (r *StoredReader) findStream(ctx context.Context) (*stream.Info, *connection.Link, error) {
	l, err := r.connector.connectedLink(ctx)
	if err != nil {
		return nil, nil, err
	}
	found, err := r.cfg.streamClient(l).RequireInfo(ctx)
	return found, l, err
}

// ReadStored implements [sinks.StoredReader].
func (r *StoredReader) ReadStored(ctx context.Context, spans []sinks.StoredSpan, each func(sinks.StoredRecord) error) error {
	found, l, err := r.findStream(ctx)
	if err != nil {
		return err
	}
	for i, s := range spans {
		if s.From >= s.To {
			continue
		}
		err := r.cfg.streamClient(l).ReadRange(ctx, uint64(s.From), uint64(s.To-1), found.Config.AllowDirect, func(m stream.Message) error {
			if strings.HasPrefix(m.Subject, r.cfg.fencePrefix()) {
				return nil
			}
			return each(sinks.StoredRecord{
				Lane: i, Position: int64(m.Sequence), Key: objectKey(r.cfg.Subject, m.Subject), Value: m.Data, Header: factHeader(m),
				RemovesUnnamed: m.Header(headerOperation) != "" && m.Header(headerID) == "",
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Close implements [sinks.StoredReader].
func (r *StoredReader) Close(ctx context.Context) error { return r.connector.closeLink(ctx) }
