package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxBatchBytes bounds the events of one request in batched mode. A larger single event is a request of its own.
const maxBatchBytes = 1 << 20

// Sink posts to one URL. It is safe for concurrent use as defined by [sinks.Sink].
type Sink struct {
	cfg       Config
	format    format.Format
	client    *http.Client
	laneNames []sinks.Lane                 // by lane number
	slots     map[sinks.Lane]chan struct{} // of capacity 1; full while a request of the lane is in flight

	bodyTimeout     time.Duration
	connectionsLost atomic.Bool // the last response did not end, so that its connection was closed

	lifetime       context.Context // ends with Close
	cancelRequests context.CancelFunc
	requests       sync.WaitGroup
}

var (
	_ sinks.ConditionReporter = (*Sink)(nil)
	_ sinks.Concurrent        = (*Sink)(nil)
)

// New returns a sink that posts changes in the format f. It reads no file, opens no connection and starts no goroutine. Its
// errors are those of [Config.Validate] and [Config.ValidateFormat].
func New(cfg Config, f format.Format) (*Sink, error) {
	if err := errors.Join(cfg.Validate(), cfg.ValidateFormat(f)); err != nil {
		return nil, err
	}
	cfg.SetDefaults()
	s := &Sink{cfg: cfg, format: f, client: newClient(cfg), bodyTimeout: bodyTimeout,
		slots: make(map[sinks.Lane]chan struct{}, cfg.Lanes)}
	s.lifetime, s.cancelRequests = context.WithCancel(context.Background())
	for i := range cfg.Lanes {
		name := sinks.Lane(fmt.Sprintf("%d/%d", i, cfg.Lanes))
		s.laneNames, s.slots[name] = append(s.laneNames, name), make(chan struct{}, 1)
	}
	return s, nil
}

// Concurrency implements [sinks.Concurrent]: one Publish per lane.
func (s *Sink) Concurrency() int { return s.cfg.Lanes }

// Lane implements [sinks.Sink]. It hashes the key of the object and never fails.
func (s *Sink) Lane(c *event.Change) (sinks.Lane, error) {
	return s.laneNames[sinks.KeyHash(c)%uint64(len(s.laneNames))], nil
}

// AllLanes implements [sinks.LaneLister].
func (s *Sink) AllLanes(*event.Change, *sinks.Template) ([]sinks.Lane, error) {
	return s.laneNames, nil
}

// StandsForSeveral implements [sinks.LaneLister].
func (*Sink) StandsForSeveral(sinks.Lane) bool { return false }

// Publish implements [sinks.Sink]. It posts one request after the other. A batch that is rejected is posted in halves, until
// the event that is the cause stands alone. // I3
func (s *Sink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	slot, known := s.slots[lane]
	if !known {
		return 0, fmt.Errorf("lane %q is not one of this sink, which has %d lanes", lane, len(s.laneNames))
	}
	done, limit := 0, s.cfg.Batch
	for done < len(batch) {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		n := requestSize(batch[done:], limit)
		err := s.postBatch(ctx, slot, batch[done:done+n])
		var rejected *sinks.RejectedError
		switch {
		case err == nil:
			done += n
		case n > 1 && errors.As(err, &rejected):
			limit = n / 2
		default:
			return done, err
		}
	}
	return done, nil
}

// requestSize returns how many messages go into one request.
func requestSize(batch []sinks.Message, limit int) int {
	n, size := 0, 0
	for n < min(limit, len(batch)) {
		if size += batch[n].Change.Size(); n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	return n
}

// encodeRequest returns the body of a request and sets the headers that depend on the events.
func (s *Sink) encodeRequest(header http.Header, batch []sinks.Message) []byte {
	header.Set("Content-Type", s.format.ContentType())
	if s.cfg.Batch == 1 {
		if s.format == format.CloudEvents {
			setAttributes(header, batch[0].Change)
		}
		return s.format.AppendValue(nil, batch[0].Change)
	}
	header.Set("Content-Type", "application/cloudevents-batch+json")
	body := []byte{'['}
	for i, m := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = s.format.AppendValue(body, m.Change)
	}
	return append(body, ']')
}

// setAttributes sets the headers of binary mode (http-protocol-binding.md, section 3.1.3).
func setAttributes(header http.Header, c *event.Change) {
	var value []byte
	for _, a := range format.Attributes() {
		if value = a.Append(value[:0], c); len(value) > 0 {
			header.Set("ce-"+a.Name, string(sinks.AppendAttribute(nil, value)))
		}
	}
}

// Close waits for abandoned requests until ctx ends and cancels the rest: a receiver that still processes a request could
// finish it after its repetition. Then it closes the connections. // I3
func (s *Sink) Close(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.cancelRequests)
	s.requests.Wait()
	stop()
	s.cancelRequests()
	s.client.CloseIdleConnections()
	return nil
}
