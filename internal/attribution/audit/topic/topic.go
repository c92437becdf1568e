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

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/follow"
)

const (
	refreshInterval = time.Second            // between two looks at partitions and leaders
	pollInterval    = 500 * time.Millisecond // between two reads of a partition
)

// Topic reads all partitions of a topic, each from its stored position.
type Topic struct {
	*audit.Log
	config      Config
	topic       string
	cluster     *cluster.Cluster // nil: not connected yet
	initialized bool             // partitions that are found from now on are new
	tasks       map[int32]*partitionTask
	layout      atomic.Pointer[cluster.Layout] // of the last metadata

	mu       sync.Mutex
	problems map[string]error // of what cannot be read, by its name
}

// partitionTask is the goroutine that reads a partition.
type partitionTask struct {
	stop context.CancelFunc
	done chan struct{}
}

// New returns a reader of a topic. It opens no connection.
func New(config Config, topic string, o audit.Options) *Topic {
	remedy := "check that the brokers answer and that audit.kafka may read and describe the topic"
	return &Topic{
		Log: audit.NewLog(topic, remedy, o), config: config.withDefaults(), topic: topic,
		tasks: map[int32]*partitionTask{}, problems: map[string]error{},
	}
}

// Run reads until ctx ends and returns its cause. It fails only if events cannot be stored.
func (t *Topic) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer t.closeAll(ctx)
	defer cancel(nil)
	look := func(ctx context.Context) error { return t.refreshPartitions(ctx, cancel) }
	return audit.PollUntilDone(ctx, refreshInterval, look, func(err error) { t.reportProblem("topic", err) })
}

// closeAll waits for the partition tasks, after their context has ended, and closes all connections.
func (t *Topic) closeAll(ctx context.Context) {
	for id := range t.tasks {
		t.stopPartition(id)
	}
	if t.cluster != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.config.RequestTimeout)
		defer cancel()
		_ = t.cluster.Close(closing) // reads only: nothing can be lost
	}
}

// reportProblem records whether a partition, or the list of partitions, can be read, and updates the condition.
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

// refreshPartitions starts reading new partitions and stops reading removed ones.
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
	for id := range int32(len(layout.Leads)) {
		if t.tasks[id] == nil {
			t.startPartition(ctx, id, failed)
		}
	}
	t.initialized = true
	return t.removePartitions(ctx, int32(len(layout.Leads)))
}

// connectCluster creates the client, with the current certificates and passwords.
func (t *Topic) connectCluster() (err error) {
	if t.cluster == nil {
		t.cluster, err = cluster.New(cluster.Options{
			Brokers: t.config.Brokers, ClientID: t.config.ClientID, TLS: t.config.TLS, SASL: t.config.SASL,
			Timeout: t.config.RequestTimeout,
		}, t.Logger)
	}
	return err
}

// positionKey is the place under which the position of a partition is stored.
func (t *Topic) positionKey(id int32) string {
	return "kafka:" + t.topic + "/" + strconv.Itoa(int(id))
}

// startPartition starts a task that reads a partition until ctx ends, the partition is removed, or its events cannot be
// stored.
func (t *Topic) startPartition(ctx context.Context, id int32, failed func(error)) {
	reads, stop := context.WithCancel(ctx)
	r := &partitionTask{stop: stop, done: make(chan struct{})}
	t.tasks[id] = r
	p := newPartition(t, id, t.initialized)
	go func() {
		defer close(r.done)
		err := audit.PollUntilDone(reads, pollInterval, p.readAvailable, func(err error) { t.reportProblem(follow.Name(id), err) })
		if reads.Err() == nil {
			failed(err)
		}
	}()
}

// stopPartition stops the task of a partition and waits for it.
func (t *Topic) stopPartition(id int32) {
	r := t.tasks[id]
	r.stop()
	<-r.done
	delete(t.tasks, id)
}

// removePartitions stops reading the partitions from an ID on and records their loss: a topic loses partitions only if it is
// recreated.
func (t *Topic) removePartitions(ctx context.Context, from int32) error {
	for id := from; ; id++ {
		stored, err := t.StoredPosition(t.positionKey(id))
		if err != nil || stored == "" {
			return err
		}
		if t.tasks[id] != nil {
			t.stopPartition(id)
			t.reportProblem(follow.Name(id), nil)
		}
		reason := fmt.Sprintf("%s of the audit topic %s is gone: the topic was recreated", follow.Name(id), t.topic)
		if err := t.StoreLoss(ctx, parseSince(stored), reason); err != nil {
			return err
		}
		if err := t.StorePart(ctx, audit.Part{Place: t.positionKey(id)}); err != nil {
			return err
		}
	}
}
