package kafka

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

// takeOverHarness describes processes of one group that write to topics of a prefix in a format.
func takeOverHarness(brokers []string, prefix string, f format.Format, adapt func(*Config)) sinktest.Harness {
	cfg := Config{
		Brokers: brokers, Topic: prefix + "{resource}", BatchBytes: minBatchBytes,
		CreateTopics: CreateTopics{Enabled: true, Partitions: 3},
	}
	adapt(&cfg)
	return sinktest.Harness{
		New: func(t testing.TB) sinks.Sink {
			t.Helper()
			s, err := New(cfg, f, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Read: func(t testing.TB) []sinktest.Delivered {
			return deliveredIn(t, readAll(t, brokers, prefix), cfg.Tombstones)
		},
		Key:        (*event.Change).Key,
		Value:      func(c *event.Change) []byte { return f.AppendValue(nil, c) },
		ExactRetry: true, ExactRestart: true, Tombstones: cfg.Tombstones,
	}
}

func TestTakeOversOnApacheKafka(t *testing.T) {
	b := apache(t)
	for name, adapt := range map[string]func(*Config){
		"zstd": func(*Config) {}, "lz4": func(c *Config) { c.Compression = "lz4" }, "snappy": func(c *Config) { c.Compression = "snappy" },
		"gzip": func(c *Config) { c.Compression = "gzip" }, "none": func(c *Config) { c.Compression = "none" },
	} {
		t.Run(name, func(t *testing.T) {
			sinktest.RunTakeOver(t, takeOverHarness(b.Brokers(), "k8s."+name+".", format.JSON, adapt))
		})
	}
	for _, f := range []format.Format{format.CloudEvents, format.CloudEventsStructured, format.Upsert, format.Debezium} {
		t.Run(f.String(), func(t *testing.T) {
			adapt := func(c *Config) { c.Tombstones = f == format.Debezium }
			sinktest.RunTakeOver(t, takeOverHarness(b.Brokers(), "k8s."+f.String()+".", f, adapt))
		})
	}
}

// deliveredIn reads records of any format.
func deliveredIn(t testing.TB, records []*kgo.Record, tombstones bool) (all []sinktest.Delivered) {
	for _, r := range records {
		d := sinktest.Delivered{ID: header(r, "id") + header(r, "ce_id"), Key: string(r.Key), Value: r.Value, Topic: r.Topic}
		var structured struct{ ID string }
		if d.ID == "" {
			if err := json.Unmarshal(r.Value, &structured); err != nil {
				t.Error(err)
			}
			d.ID = structured.ID
		}
		if tombstones && r.Value == nil && header(r, "type") == string(event.Deleted) {
			d.ID, d.Tombstone = "", true
		}
		all = append(all, d)
	}
	return all
}

// TestTakeOversWhileBrokersDie kills one of three brokers whenever another process begins to take over: leaders, and the
// coordinator of the transactional ID.
func TestTakeOversWhileBrokersDie(t *testing.T) {
	cluster := apaches(t)
	h := takeOverHarness(cluster.Brokers(), "k8s.three.", format.JSON, func(c *Config) { c.RequestTimeout = 5 * time.Second })
	whole := make(chan struct{}, 1) // holds a token while all brokers run
	whole <- struct{}{}
	begun := 0
	open, read := h.New, h.Read
	h.New = func(t testing.TB) sinks.Sink {
		begun++
		if begun%5 != 0 { // a broker takes seconds to come back
			return open(t)
		}
		<-whole
		victim := cluster[begun/5%len(cluster)]
		go func() {
			defer func() { whole <- struct{}{} }()
			if err := victim.Kill(); err != nil {
				t.Error(err)
			}
			restart(t, victim)
		}()
		return open(t)
	}
	h.Read = func(t testing.TB) []sinktest.Delivered {
		<-whole
		defer func() { whole <- struct{}{} }()
		return read(t)
	}
	sinktest.RunTakeOver(t, h)
	<-whole
	t.Logf("%d processes, %d kills", begun, begun/5)
}

// TestATransactionalIDThatIsKeptDoesNotExpire has a broker that forgets transactional IDs after seconds.
func TestATransactionalIDThatIsKeptDoesNotExpire(t *testing.T) {
	const expires = 10 * time.Second
	b := apacheWith(t, map[string]string{
		"transactional.id.expiration.ms":                             itoa(int(expires.Milliseconds())),
		"transaction.remove.expired.transaction.cleanup.interval.ms": "500",
	})
	cfg := Config{Brokers: b.Brokers(), Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}}
	for !isKept(t, cfg, expires) {
		t.Log("the ID was left alone for too long: begun anew")
	}
}

// isKept keeps an ID until another one, which nobody keeps, has expired, and then takes over. It is false, and shows
// nothing, when this ID was left alone for so long meanwhile that it may have expired too.
func isKept(t *testing.T, cfg Config, expires time.Duration) bool {
	t.Helper()
	s, next := open(t, cfg), open(t, cfg)
	lane := laneOf(t, s, pod("a", 1))
	last := time.Now()
	use := func(what func() error) bool { // what makes the broker count anew, at some moment of the call
		begins := time.Now()
		err := what()
		inTime := time.Since(last) < expires*3/4
		if last = begins; inTime && err != nil {
			t.Fatal(err)
		}
		return inTime
	}
	if !use(func() error { return claim(t, s, lane) }) {
		return false
	}
	f := s.fence.Load()
	first := f.own.Producer
	keep := func() error { return f.keepNow(t.Context()) }
	other := s.cluster.Transactional("another")
	began, err := other.Init(t.Context(), cluster.Nobody)
	if err != nil {
		t.Fatal(err)
	}
	for v, now := 1, began; now.Producer == began.Producer; { // until an ID that nobody keeps has expired
		for untouched := time.Now(); time.Since(untouched) < expires+2*time.Second; v++ {
			insist(t, s, lane, pods("a", v, v+1))
			if !use(keep) {
				return false
			}
			if err := ratelimit.Sleep(t.Context(), 200*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		if now, err = other.Init(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	if !use(keep) || !use(func() error { return claim(t, next, lane) }) {
		return false
	}
	if f.own.Producer != first {
		t.Errorf("the producer ID was %d and is %d", first, f.own.Producer)
	}
	if got := next.fence.Load().own.Producer; got != first {
		t.Errorf("a successor has the producer ID %d, want %d", got, first)
	}
	return true
}
