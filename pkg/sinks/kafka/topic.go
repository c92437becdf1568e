package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// topic is what is known of one topic. It is safe for concurrent use.
type topic struct {
	name         string
	refreshToken chan struct{} // holds one token; its holder may ask the cluster
	checked      bool          // the settings were checked; belongs to the holder of the token
	layout       atomic.Pointer[cluster.Layout]
	codec        atomic.Int32 // index of the codec that it accepts, as far as is known: see compressionChoice
	limit        atomic.Pointer[sizeLimit]
	schemas      atomic.Pointer[record.SchemaIDs] // known before the layout, in a format that needs them
}

// topicCatalog knows the layouts of the topics in use, and creates and checks topics where that is configured. It is safe
// for concurrent use.
type topicCatalog struct {
	cluster *cluster.Cluster
	create  CreateTopics
	checker *topicChecker
	schemas *schemaRegistry // nil in a format without
	changed sync.Map        // of *topic: the number of partitions has changed since it was routed

	mu     sync.Mutex
	topics map[string]*topic
}

// topicByName returns a topic, of which nothing is known at first.
func (c *topicCatalog) topicByName(name string) *topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topics[name]
	if t == nil {
		t = &topic{name: name, refreshToken: make(chan struct{}, 1)}
		t.refreshToken <- struct{}{}
		c.topics[name] = t
	}
	return t
}

func (c *topicCatalog) removeTopic(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.topics, name)
}

// refreshLayout asks the cluster about a topic, unless another caller did so since this one has read seen: lanes that fail
// together ask once. With a nil seen, any known layout is returned.
func (c *topicCatalog) refreshLayout(ctx context.Context, t *topic, seen *cluster.Layout) (*cluster.Layout, error) {
	select {
	case <-t.refreshToken:
		defer func() { t.refreshToken <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now := t.layout.Load(); now != seen {
		return now, nil
	}
	now, err := c.findOrCreateTopic(ctx, t)
	if err != nil {
		return nil, err
	}
	if c.schemas != nil && t.schemas.Load() == nil {
		ids, err := c.schemas.idsOf(ctx, t.name)
		if err != nil {
			return nil, err
		}
		t.schemas.Store(&ids)
	}
	return c.setLayout(ctx, t, now), nil
}

// setLayout records the layout of a topic and returns it, or the one before: a broker that lags may not know all partitions
// of a topic yet. If all brokers agree, they were restored from before it grew.
func (c *topicCatalog) setLayout(ctx context.Context, t *topic, now *cluster.Layout) *cluster.Layout {
	before := t.layout.Load()
	if before != nil && before.ID == now.ID && now.ID != (protocol.TopicID{}) && len(now.Leads) < len(before.Leads) {
		shapes, complete := c.cluster.TopicShapes(ctx, []string{t.name}, shapeTimeout)
		if !complete || shapes[t.name].Partitions != len(now.Leads) {
			return before
		}
	}
	t.layout.Store(now)
	if before == nil || len(before.Leads) != len(now.Leads) {
		c.changed.Store(t, nil)
	}
	return now
}

// findOrCreateTopic describes a topic. It checks the settings of one that exists, and creates one that does not, as
// configured.
func (c *topicCatalog) findOrCreateTopic(ctx context.Context, t *topic) (*cluster.Layout, error) {
	found, controller, err := c.cluster.DescribeTopic(ctx, t.name)
	if err == nil && !t.checked {
		if err := c.checker.checkTopic(ctx, t.name, found); err != nil {
			return nil, err
		}
		t.checked = true
	}
	if !errors.Is(err, kafka.UnknownTopicOrPartition) {
		return found, c.cluster.SinkError(ctx, t.name, err)
	}
	if !c.create.Enabled {
		return nil, condition.Problem{
			Code: condition.SinkTargetMissing, Cause: fmt.Sprintf("topic %q does not exist", t.name),
			Remedy: "create it, or set kafka.createTopics.enabled",
		}.Wrap(err)
	}
	found, err = c.cluster.CreateTopic(ctx, controller, c.create.newTopic(t.name))
	switch {
	case err == nil:
		return found, nil
	case cluster.IsPendingCreation(err):
		return nil, condition.Problem{
			Code: condition.SinkTargetMissing, Cause: fmt.Sprintf("topic %q is created, and no broker reports its partitions yet", t.name),
			Remedy: "wait; if it does not end, look at the log of the brokers",
		}.Wrap(err)
	case protocol.ClassifyError(err) == protocol.Unauthorized, !protocol.IsBrokerError(err):
		return nil, c.cluster.SinkError(ctx, t.name, err)
	}
	return nil, condition.Problem{
		Code: condition.SinkMisconfigured, Cause: fmt.Sprintf("creating topic %q", t.name),
		Remedy: "create it by hand, or correct kafka.createTopics",
	}.Wrap(err)
}

// checkLayouts refreshes the layouts of topics in one request, and looks at their settings when that is due. Known layouts
// stay in use when no broker answers, and for topics with an error.
func (c *topicCatalog) checkLayouts(ctx context.Context, topics []*topic) {
	names, recheck := c.checker.startRecheck()
	for _, t := range topics {
		names = append(names, t.name)
	}
	found, _, err := c.cluster.DescribeTopics(ctx, slices.Compact(slices.Sorted(slices.Values(names))))
	if err != nil {
		return
	}
	if recheck {
		c.checker.recheck(ctx, found)
	}
	for _, t := range topics {
		if now := found[t.name]; now != nil && now.Err == nil && len(now.Leads) > 0 && t.layout.Load() != nil {
			c.setLayout(ctx, t, now)
		}
	}
}

// layoutMaxAge is how old the partition count of a topic may be before it is queried again.
const layoutMaxAge = 30 * time.Second

// route assigns the changes of one topic to lanes: one for each partition or, until the partitions are known, the waiting
// lane.
type route struct {
	topic *topic
	lanes []sinks.Lane
	used  []bool // by lane: it was returned since the last release
}

func newRoute(t *topic, lanes ...sinks.Lane) *route {
	return &route{topic: t, lanes: lanes, used: make([]bool, len(lanes))}
}

func topicLanes(topic string, count int) []sinks.Lane {
	lanes := make([]sinks.Lane, count)
	for i := range lanes {
		lanes[i] = laneName(topic, int32(i), count)
	}
	return lanes
}

// isWaiting reports whether the partitions of the topic were unknown when the route was made.
func (r *route) isWaiting() bool { return r.lanes[0] == waitingLane(r.topic.name) }

// router assigns changes to lanes. One of its methods is called at a time. It is embedded in Sink.
type router struct {
	template    *sinks.Template // of the topic
	topics      *topicCatalog
	runCtx      context.Context                             // of the sink
	background  func(func())                                // starts a goroutine of the sink
	former      func(topic string, now *cluster.Layout) int // see formerLayouts
	confirmAcks func() bool                                 // see ackLog.confirmAll

	scratch []byte
	routes  map[string]*route // by topic

	layoutsCheckedAt    time.Time
	layoutCheckInterval time.Duration
	checkingLayouts     atomic.Bool // a check is under way
}

// Lane returns the topic-partition of c: the topic by the template, the partition by the Java client's hash of the key.
// Topics with unknown partitions have a waiting lane. See [sinks.Sink].
func (r *router) Lane(c *event.Change) (sinks.Lane, error) { return r.LaneTo(c, nil) }

// LaneTo implements [sinks.Router]. The lane names the topic, so Publish needs no template.
func (r *router) LaneTo(c *event.Change, template *sinks.Template) (sinks.Lane, error) {
	to, err := r.routeTo(c, template)
	if err != nil {
		return "", err
	}
	r.scratch = c.AppendKey(r.scratch[:0])
	i := partitionForKey(r.scratch, len(to.lanes))
	to.used[i] = true
	return to.lanes[i], nil
}

// AllLanes implements [sinks.LaneLister]: all partitions of the topic of c.
func (r *router) AllLanes(c *event.Change, template *sinks.Template) ([]sinks.Lane, error) {
	to, err := r.routeTo(c, template)
	if err != nil {
		return nil, err
	}
	for i := range to.used {
		to.used[i] = true
	}
	return to.lanes, nil
}

// routeTo returns the route of the topic that a template names for c; nil stands for that of the sink.
func (r *router) routeTo(c *event.Change, template *sinks.Template) (*route, error) {
	if template == nil {
		template = r.template
	}
	r.scratch = template.AppendName(r.scratch[:0], c, appendEscaped)
	to := r.routes[string(r.scratch)]
	if to == nil {
		if err := checkTopicName(r.scratch); err != nil {
			return nil, &sinks.RejectedError{Reason: "no topic for this change", Err: err}
		}
		to = r.createRoute(string(r.scratch))
	}
	return to, nil
}

// createRoute creates the route of a topic from the layout of the previous process, while changes of that are delivered, or
// else from its known layout, or with a waiting lane.
func (r *router) createRoute(name string) *route {
	t := r.topics.topicByName(name)
	to, now := newRoute(t, waitingLane(name)), t.layout.Load()
	if count := r.former(name, now); count > 0 {
		to = newRoute(t, topicLanes(name, count)...)
	} else if now != nil {
		to = newRoute(t, topicLanes(name, len(now.Leads))...)
	}
	r.routes[name] = to
	return to
}

func (r *router) hasRoute(topic string) bool { return r.routes[topic] != nil }

// ResumeLanes implements [sinks.Repartitioner]. A lane's name contains how many partitions its topic had.
func (r *router) ResumeLanes(lanes []sinks.Lane) {
	for _, name := range lanes {
		if topic, ok := topicOfWaitingLane(name); ok {
			r.routes[topic] = newRoute(r.topics.topicByName(topic), name)
		} else if topic, _, count, err := parseLane(name); err == nil {
			t := r.topics.topicByName(topic)
			r.routes[topic] = newRoute(t, topicLanes(topic, count)...)
			if now := t.layout.Load(); now != nil && len(now.Leads) != count {
				r.topics.changed.Store(t, nil)
			}
		}
	}
}

// PendingRepartitions implements [sinks.Repartitioner] with the routes of topics that have another number of partitions by
// now. It starts a check of all topics when that is due.
func (r *router) PendingRepartitions() (due []sinks.Repartition) {
	r.startLayoutCheck()
	for one := range r.topics.changed.Range {
		t := one.(*topic)
		from, now := r.routes[t.name], t.layout.Load()
		former, count := r.former(t.name, now), len(now.Leads)
		waits := 0 < former && former < count // with the partitions that were added until the former layout is finished
		if waits {
			count = former
		}
		if from == nil || !from.isWaiting() && count == len(from.lanes) {
			if !waits {
				r.topics.changed.Delete(t)
			}
			continue
		}
		to := sinks.Repartition{From: from.lanes, To: topicLanes(t.name, count), Lost: count < len(from.lanes)}
		switch {
		case from.isWaiting(): // the layout became known, which needs no log line
		case to.Lost:
			to.Reason = fmt.Sprintf("topic %q was recreated: it has %d partitions, and had %d", t.name, count, len(from.lanes))
		default:
			to.Reason = fmt.Sprintf("topic %q has %d partitions now, and had %d", t.name, count, len(from.lanes))
		}
		due = append(due, to)
	}
	return due
}

// applyRepartition replaces the lanes of a topic and reports whether they are lanes of Kafka.
func (r *router) applyRepartition(to sinks.Repartition) bool {
	topic, _, _, err := parseLane(to.To[0])
	if err != nil {
		return false
	}
	r.routes[topic] = newRoute(r.topics.topicByName(topic), to.To...)
	return true
}

// releaseLanes marks lanes as unused, and drops topics that have no used lane.
func (r *router) releaseLanes(lanes []sinks.Lane) {
	for _, name := range lanes {
		topic, i, _, err := parseLane(name)
		if waiting, ok := topicOfWaitingLane(name); ok {
			topic, err = waiting, nil
		}
		of := r.routes[topic]
		if err != nil || of == nil || int(i) >= len(of.lanes) || of.lanes[i] != name {
			continue
		}
		of.used[i] = false
		if !slices.Contains(of.used, true) {
			delete(r.routes, topic)
			r.topics.removeTopic(topic)
		}
	}
}

// startLayoutCheck refreshes the layouts of all topics in the background when they are too old, and compares all partitions
// with what they have acknowledged.
func (r *router) startLayoutCheck() {
	if time.Since(r.layoutsCheckedAt) < r.layoutCheckInterval || !r.checkingLayouts.CompareAndSwap(false, true) {
		return
	}
	r.layoutsCheckedAt = time.Now()
	var topics []*topic
	for _, of := range r.routes {
		topics = append(topics, of.topic)
	}
	r.background(func() {
		defer r.checkingLayouts.Store(false)
		r.topics.checkLayouts(r.runCtx, topics)
		r.confirmAcks()
	})
}
