package sick_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const (
	topics   = 10
	sickOne  = "sick.t9"
	patience = 5 * time.Minute
	// deadFew is how many changes of a topic that takes none are believed to be refused for what they are: four of the lane
	// that asks for its partitions, and four of the partition.
	deadFew = 8
)

// size is how long the tenth topic is sick, and how many changes come in a second. SICK_FOR makes it long; only then are
// rates compared, on a machine that has nothing else to do.
func size(t *testing.T) (sick time.Duration, rate int, full bool) {
	t.Helper()
	text := os.Getenv("SICK_FOR")
	if text == "" {
		return 2 * time.Second, 300, false
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SICK_FOR: %v", err)
	}
	return d, 3000, true
}

// counted is a sink that counts what each topic has taken, and holds it against the order of the journal.
type counted struct {
	*kafka.Sink
	t    *testing.T
	took [topics]atomic.Int64

	mu   sync.Mutex
	last map[string]uint64 // by topic: it has one partition
}

func (c *counted) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := c.Sink.Publish(ctx, lane, batch)
	topic, _, _ := strings.Cut(string(lane), "/")
	c.took[topic[len(topic)-1]-'0'].Add(int64(n))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range batch[:n] {
		if m.Offset <= c.last[topic] {
			c.t.Errorf("topic %s: %d after %d", topic, m.Offset, c.last[topic])
		}
		c.last[topic] = m.Offset
	}
	return n, err
}

// counts are what all topics have taken so far.
func (c *counted) counts() (all [topics]int64) {
	for i := range all {
		all[i] = c.took[i].Load()
	}
	return all
}

// sinkJournal is the journal as a pipeline sees it.
type sinkJournal struct{ *journal.Journal }

func (s sinkJournal) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	return s.Journal.Settle(ctx, "kafka", c, dead)
}

// ward is a broker with ten topics, and what delivers to them.
type ward struct {
	t        *testing.T
	client   *kafkago.Client
	journal  *journal.Journal
	sink     *counted
	pipeline *delivery.Pipeline
	made     atomic.Int64 // changes appended
}

func newWard(t *testing.T) *ward {
	t.Helper()
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	b, err := broker.Start(t.Context(), broker.Options{Dir: t.TempDir(), Properties: map[string]string{
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found": "true",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Kill(); err != nil {
			t.Error(err)
		}
	})
	transport := &kafkago.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &ward{t: t, client: &kafkago.Client{Addr: kafkago.TCP(b.Address()), Transport: transport}}
}

func (w *ward) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// create makes topics of one partition.
func (w *ward) create(names ...string) {
	w.t.Helper()
	var request kafkago.CreateTopicsRequest
	for _, name := range names {
		request.Topics = append(request.Topics, kafkago.TopicConfig{Topic: name, NumPartitions: 1, ReplicationFactor: 1})
	}
	r, err := w.client.CreateTopics(w.t.Context(), &request)
	w.must(err)
	for _, err := range r.Errors {
		w.must(err)
	}
}

// alter sets max.message.bytes of the sick topic.
func (w *ward) alter(bytes string) {
	w.t.Helper()
	r, err := w.client.IncrementalAlterConfigs(w.t.Context(), &kafkago.IncrementalAlterConfigsRequest{Resources: []kafkago.IncrementalAlterConfigsRequestResource{{
		ResourceType: kafkago.ResourceTypeTopic, ResourceName: sickOne,
		Configs: []kafkago.IncrementalAlterConfigsRequestConfig{{Name: "max.message.bytes", Value: bytes, ConfigOperation: kafkago.ConfigOperationSet}},
	}}})
	w.must(err)
	for _, resource := range r.Resources {
		w.must(resource.Error)
	}
}

// deny takes a right to the sick topic away.
func (w *ward) deny(operation kafkago.ACLOperationType) {
	w.t.Helper()
	r, err := w.client.CreateACLs(w.t.Context(), &kafkago.CreateACLsRequest{ACLs: []kafkago.ACLEntry{{
		ResourceType: kafkago.ResourceTypeTopic, ResourceName: sickOne, ResourcePatternType: kafkago.PatternTypeLiteral,
		Principal: "User:ANONYMOUS", Host: "*", Operation: operation, PermissionType: kafkago.ACLPermissionTypeDeny,
	}}})
	w.must(err)
	w.must(errors.Join(r.Errors...))
}

// allow gives all rights to the sick topic back.
func (w *ward) allow() {
	w.t.Helper()
	r, err := w.client.DeleteACLs(w.t.Context(), &kafkago.DeleteACLsRequest{Filters: []kafkago.DeleteACLsFilter{{
		ResourceTypeFilter: kafkago.ResourceTypeTopic, ResourceNameFilter: sickOne, ResourcePatternTypeFilter: kafkago.PatternTypeLiteral,
		PrincipalFilter: "User:ANONYMOUS", HostFilter: "*", Operation: kafkago.ACLOperationTypeAny, PermissionType: kafkago.ACLPermissionTypeAny,
	}}})
	w.must(err)
	for _, result := range r.Results {
		w.must(result.Error)
	}
}

// start runs a journal and a pipeline, as the exporter does.
func (w *ward) start(log *slog.Logger) {
	w.t.Helper()
	j, err := journal.Open(journal.Options{Dir: w.t.TempDir(), Sinks: []string{"kafka"}, Logger: slog.New(slog.DiscardHandler)})
	w.must(err)
	w.journal = j
	s, err := kafka.New(kafka.Config{Brokers: []string{w.client.Addr.String()}, Topic: "sick.{namespace}"}, format.JSON, log)
	w.must(err)
	w.sink = &counted{Sink: s, t: w.t, last: map[string]uint64{}}
	messages, bytes := s.BatchLimits()
	w.pipeline = delivery.New("kafka", w.sink, "", sinkJournal{j}, event.Cursor{}, delivery.Config{
		Retry:   delivery.RetryConfig{Min: 100 * time.Millisecond, Max: 5 * time.Second},
		Workers: s.Concurrency(), BatchMessages: messages, BatchBytes: bytes, Smaller: shape.Smaller,
	}, log)
	ctx, stop := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := j.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	parts.Go(func() {
		if err := w.pipeline.Run(ctx); err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() {
		stop()
		parts.Wait()
		if err := errors.Join(s.Close(context.Background()), j.Close()); err != nil {
			w.t.Error(err)
		}
	})
}

// load appends changes at a rate, one of each topic in turn, until ctx ends.
func (w *ward) load(ctx context.Context, rate int) {
	body := []byte(`{"kind":"Pod","spec":"` + strings.Repeat("kubecdc", 150) + `"}`)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for began, n := time.Now(), 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for ; n < int(time.Since(began).Seconds()*float64(rate)); n++ {
			c := &event.Change{
				Type: event.Updated, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
				Namespace: fmt.Sprint("t", n%topics), Name: fmt.Sprint("o", n/topics%20), UID: fmt.Sprint("u", n%topics, n/topics%20),
				ResourceVersion: fmt.Sprint(n + 1), ObservedAt: time.Now().UTC(), After: body,
			}
			if err := w.journal.Append(ctx, event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}}); err != nil {
				if ctx.Err() == nil {
					w.t.Error(err)
				}
				return
			}
			w.made.Add(1)
		}
	}
}

// until waits for a condition.
func (w *ward) until(what string, is func() bool) {
	w.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); !is(); <-tick.C {
		if time.Since(begun) > patience {
			w.t.Fatalf("waited in vain: %s: %+v", what, w.pipeline.Stats())
		}
	}
}

// heap is what is alive, in MiB.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

func TestOneSickTopicOfTenCostsTheOthersNothing(t *testing.T) {
	for _, sickness := range []struct {
		name, reason string
		falls, heals func(w *ward)
		lost         int64 // that become dead letters, at most
	}{
		{name: "missing", reason: "does not exist: create it", falls: func(*ward) {}, heals: func(w *ward) { w.create(sickOne) }},
		{
			name: "without WRITE", reason: "grant WRITE and DESCRIBE",
			falls: func(w *ward) { w.create(sickOne); w.deny(kafkago.ACLOperationTypeWrite) }, heals: (*ward).allow,
		},
		{
			name: "without DESCRIBE", reason: "grant WRITE and DESCRIBE",
			falls: func(w *ward) { w.create(sickOne); w.deny(kafkago.ACLOperationTypeDescribe) }, heals: (*ward).allow,
		},
		{
			name: "too small", reason: "every change is rejected here", lost: deadFew,
			falls: func(w *ward) { w.create(sickOne); w.alter("10") }, heals: func(w *ward) { w.alter("1048588") },
		},
	} {
		t.Run(sickness.name, func(t *testing.T) { run(t, sickness.reason, sickness.falls, sickness.heals, sickness.lost) })
	}
}

func run(t *testing.T, reason string, falls, heals func(w *ward), lost int64) {
	sick, rate, full := size(t)
	w := newWard(t)
	for i := range topics - 1 {
		w.create(fmt.Sprint("sick.t", i))
	}
	falls(w)
	log := &lines{}
	w.start(slog.New(slog.NewTextHandler(log, nil)))
	ctx, stop := context.WithCancel(t.Context())
	var loader sync.WaitGroup
	loader.Go(func() { w.load(ctx, rate) })
	defer loader.Wait()
	defer stop()

	w.until("the sick topic is told", func() bool {
		c := w.pipeline.Stats().Condition
		return c.NotReady() == "" && strings.Contains(c.Degraded(), reason) && w.sink.counts()[0] > 0
	})
	early, before, began := heap(), w.sink.counts(), time.Now()
	w.until("its time is over", func() bool { return time.Since(began) >= sick })
	late, after := heap(), w.sink.counts()
	t.Logf("sick for %v: heap %.0f MiB, then %.0f MiB; healthy topics took %d, the sick one %d", sick, early, late, after[0]-before[0], after[topics-1])
	if got := after[topics-1]; got != 0 {
		t.Errorf("the sick topic took %d changes", got)
	}
	if full {
		for i := range topics - 1 {
			if least := float64(rate) / topics * sick.Seconds() * 0.95; float64(after[i]-before[i]) < least {
				t.Errorf("topic %d took %d changes, want %.0f", i, after[i]-before[i], least)
			}
		}
		if late > early+32 {
			t.Errorf("the heap grew from %.0f to %.0f MiB", early, late)
		}
	}

	heals(w)
	w.until("the cured topic takes changes", func() bool { return w.sink.counts()[topics-1] > 0 })
	began, backlog := time.Now(), w.made.Load()/topics
	start := w.sink.counts()
	w.until("it has caught up", func() bool { return w.sink.counts()[topics-1]+lost >= backlog })
	took := time.Since(began)
	end := w.sink.counts()
	pace := float64(end[topics-1]-start[topics-1]) / took.Seconds()
	t.Logf("cured: %.0f changes a second, %.1f times the live rate; the others took %.0f", pace, pace/(float64(rate)/topics), float64(end[0]-start[0])/took.Seconds())
	if full && pace < 10*float64(rate)/topics {
		t.Errorf("it caught up at %.0f changes a second, want %d", pace, rate)
	}
	stop()
	loader.Wait()
	made := w.made.Load()
	w.until("all is delivered", func() bool {
		s := w.pipeline.Stats()
		return s.Low >= uint64(made) && s.Pending == 0 && s.LanesBehind == 0 && s.Condition.OK()
	})
	sum := int64(0)
	for _, n := range w.sink.counts() {
		sum += n
	}
	if dead := int64(w.pipeline.Stats().DeadLetters); sum+dead != made || dead > lost {
		t.Errorf("%d delivered and %d dead of %d", sum, dead, made)
	}
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
