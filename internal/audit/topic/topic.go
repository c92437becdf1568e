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
	refreshInterval = time.Second            // for partitions that were added or are gone, and their leaders
	pollInterval    = 500 * time.Millisecond // for records of a partition
)

// Topic reads all partitions of a topic, each from where it was read to the last time.
type Topic struct {
	*audit.Log
	config      Config
	topic       string
	cluster     *cluster.Cluster // nil: not yet
	initialized bool             // partitions that are found from now on were added
	tasks       map[int]*partitionTask
	layout      atomic.Pointer[cluster.Layout] // of the last answer

	mu       sync.Mutex
	problems map[string]error // what cannot be read, and why
}

// partitionTask is the task that reads a partition.
type partitionTask struct {
	stop context.CancelFunc
	done chan struct{}
}

// New returns a reader of a topic. It opens nothing.
func New(config Config, topic string, o audit.Options) *Topic {
	remedy := "see that the brokers answer and that audit.kafka may read and describe the topic"
	return &Topic{
		Log: audit.NewLog(topic, remedy, o), config: config.withDefaults(), topic: topic,
		tasks: map[int]*partitionTask{}, problems: map[string]error{},
	}
}

// Run reads until ctx ends. It fails only where events cannot be stored.
func (t *Topic) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer t.closeAll(ctx)
	defer cancel(nil)
	look := func(ctx context.Context) error { return t.refreshPartitions(ctx, cancel) }
	return audit.PollUntilDone(ctx, refreshInterval, look, func(err error) { t.reportProblem("topic", err) })
}

// closeAll ends what reads partitions, whose context has ended, and all connections.
func (t *Topic) closeAll(ctx context.Context) {
	for id := range t.tasks {
		t.stopPartition(id)
	}
	if t.cluster != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.config.RequestTimeout)
		defer cancel()
		_ = t.cluster.Close(closing) // nothing is left to be lost
	}
}

// reportProblem says whether a part of the topic, or its list of partitions, can be read now.
func (t *Topic) reportProblem(what string, err error) {
	t.mu.Lock()
	if delete(t.problems, what); err != nil {
		t.problems[what] = fmt.Errorf("%s: %w", what, err)
	}
	var first error
	if all := slices.Sorted(maps.Keys(t.problems)); len(all) > 0 {
		first = t.problems[all[0]]
	}
	t.mu.Unlock()
	t.UpdateCondition(first)
}

// refreshPartitions asks which partitions there are, begins to read those that are new, and says which are gone.
func (t *Topic) refreshPartitions(ctx context.Context, failed func(error)) error {
	if err := t.connectCluster(); err != nil {
		return err
	}
	layout, _, err := t.cluster.DescribeTopic(ctx, t.topic)
	if err != nil {
		return err
	}
	t.layout.Store(layout)
	if !t.initialized {
		first, err := t.StoredPosition(t.positionKey(0))
		if err != nil {
			return err
		}
		t.initialized = first != ""
	}
	for id := range layout.Leads {
		if t.tasks[id] == nil {
			t.startPartition(ctx, id, failed)
		}
	}
	t.initialized = true
	return t.removePartitions(ctx, len(layout.Leads))
}

// connectCluster makes the connections, with the certificates and passwords as they are now.
func (t *Topic) connectCluster() (err error) {
	if t.cluster == nil {
		t.cluster, err = cluster.New(cluster.Options{
			Brokers: t.config.Brokers, ClientID: t.config.ClientID, TLS: t.config.TLS, SASL: t.config.SASL, Timeout: t.config.RequestTimeout,
		}, t.Logger)
	}
	return err
}

// positionKey is the name under which the position in a partition is stored.
func (t *Topic) positionKey(id int) string { return "kafka:" + t.topic + "/" + strconv.Itoa(id) }

// startPartition begins to read a partition, until ctx ends, the partition is gone, or its events cannot be stored.
func (t *Topic) startPartition(ctx context.Context, id int, failed func(error)) {
	reads, stop := context.WithCancel(ctx)
	r := &partitionTask{stop: stop, done: make(chan struct{})}
	t.tasks[id] = r
	p := &partition{Topic: t, id: id, added: t.initialized}
	go func() {
		defer close(r.done)
		err := audit.PollUntilDone(reads, pollInterval, p.readAvailable, func(err error) { t.reportProblem(p.displayName(), err) })
		if reads.Err() == nil {
			failed(err)
		}
	}()
}

// stopPartition ends what reads a partition.
func (t *Topic) stopPartition(id int) {
	r := t.tasks[id]
	r.stop()
	<-r.done
	delete(t.tasks, id)
}

// removePartitions ends what reads the partitions from one on, which are gone: a topic loses partitions only when it is made anew.
func (t *Topic) removePartitions(ctx context.Context, from int) error {
	for id := from; ; id++ {
		stored, err := t.StoredPosition(t.positionKey(id))
		if err != nil || stored == "" {
			return err
		}
		p := &partition{Topic: t, id: id}
		if t.tasks[id] != nil {
			t.stopPartition(id)
			t.reportProblem(p.displayName(), nil)
		}
		at, _ := parsePosition(stored)
		if err := t.StoreLoss(ctx, at.since, fmt.Sprintf("%s of the audit topic %s is gone: the topic was made anew", p.displayName(), t.topic)); err != nil {
			return err
		}
		if err := t.StorePart(ctx, audit.Part{Place: t.positionKey(id)}); err != nil {
			return err
		}
	}
}
