package topic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/internal/condition"
)

const (
	retryEvery = time.Second
	lookEvery  = time.Minute            // for partitions that were added
	maxBatch   = 256                    // records taken at once
	maxFetch   = 10 << 20               // of one answer of a broker, in bytes
	maxWait    = 200 * time.Millisecond // that a broker takes to answer when there is nothing new
)

var (
	readable   = condition.State{Name: "ok", Message: "audit topic is read"}
	unreadable = condition.State{Name: "unreadable", Severity: condition.Degraded, Message: "audit topic cannot be read; it is tried again"}
)

// Options configure a [Topic]. All are required.
type Options struct {
	Config Config
	Topic  string
	Take   audit.Take
	// Place returns what Take has stored last as the position of a place.
	Place func(name string) (string, error)
	// Lost is told when records are gone that were not read.
	Lost   func(reason string)
	Logger *slog.Logger
}

// Topic reads all partitions of a topic, each from where it was read to the last time.
type Topic struct {
	Options
	state *condition.Condition

	malformed atomic.Uint64
}

// New returns a reader of a topic. It opens nothing.
func New(o Options) *Topic {
	o.Config = o.Config.withDefaults()
	return &Topic{Options: o, state: condition.New(o.Logger.With("topic", o.Topic), readable)}
}

// Status says whether the topic can be read; malformed counts records that were no audit events.
func (t *Topic) Status() (status condition.Status, malformed uint64) {
	return t.state.Status(), t.malformed.Load()
}

// Name is the topic's.
func (t *Topic) Name() string { return t.Topic }

// storeError is an error of Take: nothing more can be done.
type storeError struct{ error }

// Run reads until ctx ends. It fails only where events cannot be stored.
func (t *Topic) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var reading sync.WaitGroup
	defer reading.Wait()
	for known, first := map[int]bool{}, true; ; {
		found, err := t.partitions(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait := lookEvery
		if err != nil {
			t.fail(err)
			wait = retryEvery
		}
		for _, p := range found {
			if !known[p] {
				known[p] = true
				added := !first
				reading.Go(func() {
					if err := t.follow(ctx, p, added); err != nil {
						cancel(err)
					}
				})
			}
		}
		first = first && err != nil
		if !sleep(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

func (t *Topic) fail(err error) {
	t.state.Become(unreadable, err.Error(), "see that the brokers answer and that audit.kafka may read the topic")
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// dialer reads the certificates and passwords again.
func (t *Topic) dialer() (*kafka.Dialer, error) {
	d := &kafka.Dialer{ClientID: t.Config.ClientID, Timeout: t.Config.RequestTimeout, DualStack: true}
	var err error
	if d.SASLMechanism, err = t.Config.SASL.NewMechanism(t.Config.RequestTimeout); err != nil {
		return nil, err
	}
	if t.Config.TLS.Enabled {
		if d.TLS, err = t.Config.TLS.ClientConfig(t.Config.TLS.ServerName); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// partitions asks any broker.
func (t *Topic) partitions(ctx context.Context) (ids []int, err error) {
	d, err := t.dialer()
	if err != nil {
		return nil, err
	}
	for _, broker := range t.Config.Brokers {
		var found []kafka.Partition
		if found, err = d.LookupPartitions(ctx, "tcp", broker, t.Topic); err == nil {
			for _, p := range found {
				ids = append(ids, p.ID)
			}
			return ids, nil
		}
	}
	return nil, err
}

// follow reads a partition until ctx ends, or its events cannot be stored. One that was added meanwhile is read from its
// beginning.
func (t *Topic) follow(ctx context.Context, id int, added bool) error {
	p := &partition{Topic: t, id: id, place: "kafka:" + t.Topic + "/" + strconv.Itoa(id)}
	for ctx.Err() == nil {
		err := p.read(ctx, added)
		var stored *storeError
		switch {
		case ctx.Err() != nil:
		case errors.As(err, &stored):
			return stored.error
		default:
			t.fail(fmt.Errorf("partition %d: %w", id, err))
			sleep(ctx, retryEvery)
		}
	}
	return nil
}
