package topic

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
)

const (
	lookEvery = time.Second            // for partitions that were added or are gone, and their leaders
	pollEvery = 500 * time.Millisecond // for records of a partition
)

// Topic reads all partitions of a topic, each from where it was read to the last time.
type Topic struct {
	*audit.Log
	config  Config
	topic   string
	cluster *cluster.Cluster // nil: not yet
	begun   bool             // partitions that are found from now on were added
	reading map[int]*reading
	layout  atomic.Pointer[cluster.Layout] // of the last answer

	mu     sync.Mutex
	failed map[string]error // what cannot be read, and why
}

// reading is the task that reads a partition.
type reading struct {
	stop  context.CancelFunc
	ended chan struct{}
}

// New returns a reader of a topic. It opens nothing.
func New(config Config, topic string, o audit.Options) *Topic {
	remedy := "see that the brokers answer and that audit.kafka may read and describe the topic"
	return &Topic{
		Log: audit.NewLog(topic, remedy, o), config: config.withDefaults(), topic: topic,
		reading: map[int]*reading{}, failed: map[string]error{},
	}
}

// Run reads until ctx ends. It fails only where events cannot be stored.
func (t *Topic) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer t.close(ctx)
	defer cancel(nil)
	look := func(ctx context.Context) error { return t.look(ctx, cancel) }
	return audit.Repeat(ctx, lookEvery, look, func(err error) { t.report("topic", err) })
}

// close ends what reads partitions, whose context has ended, and all connections.
func (t *Topic) close(ctx context.Context) {
	for id := range t.reading {
		t.end(id)
	}
	if t.cluster != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.config.RequestTimeout)
		defer cancel()
		_ = t.cluster.Close(closing) // nothing is left to be lost
	}
}

// report says whether a part of the topic, or its list of partitions, can be read now.
func (t *Topic) report(what string, err error) {
	t.mu.Lock()
	if delete(t.failed, what); err != nil {
		t.failed[what] = fmt.Errorf("%s: %w", what, err)
	}
	var first error
	if all := slices.Sorted(maps.Keys(t.failed)); len(all) > 0 {
		first = t.failed[all[0]]
	}
	t.mu.Unlock()
	t.Report(first)
}

// look asks which partitions there are, begins to read those that are new, and says which are gone.
func (t *Topic) look(ctx context.Context, failed func(error)) error {
	if err := t.connect(); err != nil {
		return err
	}
	layout, _, err := t.cluster.Describe(ctx, t.topic)
	if err != nil {
		return err
	}
	t.layout.Store(layout)
	if !t.begun {
		first, err := t.Place(t.place(0))
		if err != nil {
			return err
		}
		t.begun = first != ""
	}
	for id := range layout.Leads {
		if t.reading[id] == nil {
			t.start(ctx, id, failed)
		}
	}
	t.begun = true
	return t.forget(ctx, len(layout.Leads))
}

// connect makes the connections, with the certificates and passwords as they are now.
func (t *Topic) connect() (err error) {
	if t.cluster == nil {
		t.cluster, err = cluster.New(cluster.Options{
			Brokers: t.config.Brokers, ClientID: t.config.ClientID, TLS: t.config.TLS, SASL: t.config.SASL, Timeout: t.config.RequestTimeout,
		}, t.Logger)
	}
	return err
}

// place is the name under which the position in a partition is stored.
func (t *Topic) place(id int) string { return "kafka:" + t.topic + "/" + strconv.Itoa(id) }

// start begins to read a partition, until ctx ends, the partition is gone, or its events cannot be stored.
func (t *Topic) start(ctx context.Context, id int, failed func(error)) {
	reads, stop := context.WithCancel(ctx)
	r := &reading{stop: stop, ended: make(chan struct{})}
	t.reading[id] = r
	p := &partition{Topic: t, id: id, added: t.begun}
	go func() {
		defer close(r.ended)
		err := audit.Repeat(reads, pollEvery, p.poll, func(err error) { t.report(p.name(), err) })
		if reads.Err() == nil {
			failed(err)
		}
	}()
}

// end ends what reads a partition.
func (t *Topic) end(id int) {
	r := t.reading[id]
	r.stop()
	<-r.ended
	delete(t.reading, id)
}

// forget ends what reads the partitions from one on, which are gone: a topic loses partitions only when it is made anew.
func (t *Topic) forget(ctx context.Context, from int) error {
	for id := from; ; id++ {
		stored, err := t.Place(t.place(id))
		if err != nil || stored == "" {
			return err
		}
		p := &partition{Topic: t, id: id}
		if t.reading[id] != nil {
			t.end(id)
			t.report(p.name(), nil)
		}
		at, _ := parsePosition(stored)
		if err := t.Lose(ctx, at.since, fmt.Sprintf("%s of the audit topic %s is gone: the topic was made anew", p.name(), t.topic)); err != nil {
			return err
		}
		if err := t.Store(ctx, audit.Part{Place: t.place(id)}); err != nil {
			return err
		}
	}
}
