package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/follow"
)

const (
	refreshInterval = time.Second            // between two looks at partitions and leaders
	pollInterval    = 500 * time.Millisecond // between two reads of a partition
)

// maxBatch is the number of events stored in one call.
const maxBatch = 256

// Options are the dependencies of a [Topic]. All are required.
type Options struct {
	StoreEvents audit.StoreEvents
	// StoredPosition returns the position that StoreEvents stored last under a name; "" where nothing is stored.
	StoredPosition func(name string) (string, error)
	RecordLoss     audit.RecordLoss
	Logger         *slog.Logger
}

// Topic reads all partitions of a topic, each from its stored position.
type Topic struct {
	Options
	condition *condition.Condition
	malformed atomic.Uint64

	config      Config
	topic       string
	cluster     *cluster.Cluster // nil: not connected yet
	initialized bool             // partitions that are found from now on are new
	tasks       map[int32]*partitionTask
	layout      atomic.Pointer[cluster.Layout] // of the last metadata

	mu       sync.Mutex
	problems map[string]error // of what cannot be read, by its name
}

type partitionTask struct {
	stop context.CancelFunc
	done chan struct{}
}

// New returns a reader of a topic. It opens no connection.
func New(config Config, topic string, o Options) *Topic {
	return &Topic{
		Options: o, condition: condition.New(o.Logger.With("audit log", topic), "audit/"+topic, condition.Problem{}),
		config: config.withDefaults(), topic: topic, tasks: map[int32]*partitionTask{}, problems: map[string]error{},
	}
}

// Name is the name of the topic.
func (t *Topic) Name() string { return t.topic }

// Status returns whether the topic can be read, and the number of malformed records.
func (t *Topic) Status() (status condition.Status, malformed uint64) {
	return t.condition.Status(), t.malformed.Load()
}

// Run reads until ctx ends and returns its cause. It fails only if events cannot be stored.
func (t *Topic) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer t.closeAll(ctx)
	defer cancel(nil)
	look := func(ctx context.Context) error { return t.refreshPartitions(ctx, cancel) }
	return pollUntilDone(ctx, refreshInterval, look, func(err error) { t.reportProblem("topic", err) })
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
	if first == nil {
		t.condition.Clear()
		return
	}
	t.condition.Update(condition.Problem{Code: condition.AuditUnreadable, Cause: first.Error(),
		Remedy: "check that the brokers answer and that audit.kafka may read and describe the topic"})
}

// refreshPartitions starts reading new partitions and stops reading removed ones.
func (t *Topic) refreshPartitions(ctx context.Context, failed func(error)) error {
	if t.cluster == nil { // with the current certificates and passwords
		client, err := cluster.New(cluster.Options{
			Brokers: t.config.Brokers, ClientID: t.config.ClientID, TLS: t.config.TLS, SASL: t.config.SASL,
			Timeout: t.config.RequestTimeout,
		}, t.Logger)
		if err != nil {
			return err
		}
		t.cluster = client
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
	p := &partition{Topic: t, id: id}
	p.follower = follow.New(follow.Options{ // one that was added while the topic was read is read from its start
		Cluster: t.cluster, Partition: cluster.Partition{Topic: t.topic, Index: id}, Role: "audit topic", FromStart: t.initialized,
		Load: p.loadPosition, Each: p.scanRecord, Store: p.storeRead,
		RecordLoss: func(ctx context.Context, reason string) error { return p.storeLoss(ctx, p.since, reason) },
	})
	go func() {
		defer close(r.done)
		err := pollUntilDone(reads, pollInterval, p.readAvailable, func(err error) { t.reportProblem(follow.Name(id), err) })
		if reads.Err() == nil {
			failed(err)
		}
	}()
}

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
		if err := t.storeLoss(ctx, parseSince(stored), reason); err != nil {
			return err
		}
		if err := t.StoreEvents(ctx, "", nil, t.positionKey(id), ""); err != nil {
			return &storeError{err}
		}
	}
}

// Config configures the topics that audit events are read from. A zero value of an optional field stands for its default.
type Config struct {
	// Addresses of brokers to start from, "host:port". Empty: no topic is read.
	Brokers []string `mapstructure:"brokers"`
	// Topics with audit events of audit.k8s.io/v1, or lists of them, in the envelopes of clouds or none.
	Topics []string `mapstructure:"topics"`
	// Client ID for the logs and quotas of the brokers. Default "kubecdc".
	ClientID string `mapstructure:"clientID"`
	// Timeout of one request, including the connection. Default 10s; 100ms to 1h.
	RequestTimeout time.Duration `mapstructure:"requestTimeout"`
	// TLS of the connections to the brokers.
	TLS auth.TLS `mapstructure:"tls"`
	// SASL authentication.
	SASL auth.SASL `mapstructure:"sasl"`
}

const (
	defaultClientID       = "kubecdc"
	defaultRequestTimeout = 10 * time.Second
	minRequestTimeout     = 100 * time.Millisecond
	maxRequestTimeout     = time.Hour
)

// Enabled reports whether any topic is read.
func (c Config) Enabled() bool { return len(c.Topics) > 0 }

// Validate returns all problems of c in one joined error. Each part starts with the path of the field, as "kafka.topics:
// …", and contains no secret. It opens no connection.
func (c Config) Validate() error {
	errs := []error{c.TLS.Validate(), c.SASL.Validate()}
	switch {
	case !c.Enabled() && len(c.Brokers) > 0:
		errs = append(errs, errors.New("kafka.topics: none is given, and without one the rest of audit.kafka means nothing"))
	case c.Enabled() && len(c.Brokers) == 0:
		errs = append(errs, errors.New(`kafka.brokers: missing; expected at least one "host:port"`))
	}
	for i, broker := range c.Brokers {
		host, port, err := net.SplitHostPort(broker)
		if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || portErr != nil || n == 0 { // not shown: it may hold a password
			errs = append(errs, fmt.Errorf(`kafka.brokers[%d]: no "host:port" with a port from 1 to 65535`, i))
		}
	}
	for i, name := range c.Topics {
		if name == "" || slices.Contains(c.Topics[:i], name) {
			errs = append(errs, fmt.Errorf("kafka.topics[%d]: %q; expected the name of a topic, every topic once", i, name))
		}
	}
	if d := c.RequestTimeout; d != 0 && d < minRequestTimeout || d > maxRequestTimeout {
		errs = append(errs, fmt.Errorf("kafka.requestTimeout: %v; expected %v to %v", d, minRequestTimeout, maxRequestTimeout))
	}
	if m := c.SASL.Mechanism; !c.TLS.Enabled && !c.SASL.AllowCleartextCredentials && (m == "plain" || m == "oauthbearer") {
		errs = append(errs, fmt.Errorf("kafka.sasl.mechanism: %s without kafka.tls sends the password or token in cleartext; use TLS, or set "+
			"kafka.sasl.allowCleartextCredentials: true in a trusted network", m))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.ClientID, c.RequestTimeout = cmp.Or(c.ClientID, defaultClientID), cmp.Or(c.RequestTimeout, defaultRequestTimeout)
	return c
}

// partition reads one partition. One goroutine uses it.
type partition struct {
	*Topic
	id       int32
	follower *follow.Partition
	since    time.Time // response time of the newest event before the position, or the start time

	// What was read since the last store: events, and the number of records that are none.
	events    []audit.Event
	unscanned int
}

// readAvailable reads everything up to the end of the partition.
func (p *partition) readAvailable(ctx context.Context) error {
	lead, err := p.layout.Load().Lead(p.id)
	if err != nil {
		return err
	}
	p.events, p.unscanned = nil, 0
	return p.follower.ReadAvailable(ctx, lead)
}

func (p *partition) loadPosition() (string, error) {
	stored, err := p.StoredPosition(p.positionKey(p.id))
	if p.since = parseSince(stored); stored == "" {
		p.since = time.Now()
	}
	return stored, err
}

func (p *partition) scanRecord(r follow.Record) error {
	if len(r.Value) == 0 {
		return nil
	}
	var malformed int
	p.events, malformed = audit.AppendRecord(p.events, r.Value)
	p.unscanned += malformed
	return nil
}

// storeRead stores what was read, with the position after it, which is last: a crash in between repeats events and loses
// none. The API server of an event is not known, so the events have no origin, and their times are not compared.
func (p *partition) storeRead(ctx context.Context, at follow.Position) error {
	events, malformed := p.events, p.unscanned
	p.events, p.unscanned = nil, 0
	if malformed > 0 {
		p.malformed.Add(uint64(malformed))
		reason := "the audit log " + p.topic + " has records that are not audit events, or too long"
		if err := p.storeLoss(ctx, p.since, reason); err != nil {
			return err
		}
	}
	for i := range events {
		if done := events[i].Done; done != 0 && done.Time().After(p.since) {
			p.since = done.Time()
		}
	}
	for len(events) > maxBatch {
		if err := p.StoreEvents(ctx, "", events[:maxBatch], "", ""); err != nil {
			return &storeError{err}
		}
		events = events[maxBatch:]
	}
	if err := p.StoreEvents(ctx, "", events, p.positionKey(p.id), fmt.Sprintf("%s %d", at, p.since.UnixMilli())); err != nil {
		return &storeError{err}
	}
	return nil
}

// storeLoss records a loss. Call it before storing the position after the lost events.
func (t *Topic) storeLoss(ctx context.Context, since time.Time, reason string) error {
	if err := t.RecordLoss(ctx, since, reason); err != nil {
		return &storeError{err}
	}
	return nil
}

// storeError wraps an error of StoreEvents or RecordLoss, which ends the intake.
type storeError struct{ error }

// pollUntilDone calls read at intervals, and report with its result, until ctx ends or events cannot be stored.
func pollUntilDone(ctx context.Context, every time.Duration, read func(context.Context) error, report func(error)) error {
	for {
		err := read(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if stored, found := errors.AsType[*storeError](err); found {
			return stored.error
		}
		report(err)
		if ratelimit.Sleep(ctx, every) != nil {
			return context.Cause(ctx)
		}
	}
}

// parseSince returns the time in a stored position. Older ones have none.
func parseSince(stored string) (since time.Time) {
	var next, base, crc, ms int64
	if n, _ := fmt.Sscanf(stored, "%d %d %d %d", &next, &base, &crc, &ms); n == 4 && ms > 0 {
		since = time.UnixMilli(ms)
	}
	return since
}
