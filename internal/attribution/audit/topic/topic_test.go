package topic_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/attribution/audit/topic"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const name = "audit"

// IDs of events that are written in the envelope of a cloud.
const azureID, cloudWatchID = "of-azure", "of-cloudwatch"

func zip(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// testTimeout bounds waits for a condition. It is never slept.
const testTimeout = 3 * time.Minute

// topicReader is a topic with its reader. The stored positions outlive the reader, as in a journal.
type topicReader struct {
	t       *testing.T
	cluster *kfake.Cluster
	client  *kgo.Client
	brokers []string

	mu         sync.Mutex
	positions  map[string]string
	ids        []string
	lost       []string
	storeError error
	reader     *topic.Topic
	ended      chan error
}

func newTopicReader(t *testing.T) *topicReader {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &topicReader{t: t, cluster: cluster, client: client, brokers: cluster.ListenAddrs(), positions: map[string]string{}}
}

func (r *topicReader) storeEvents(_ context.Context, origin string, events []audit.Event, place, position string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.storeError != nil {
		return r.storeError
	}
	for _, e := range events {
		r.ids = append(r.ids, e.ID)
	}
	if origin != "" {
		r.t.Errorf("origin %q", origin)
	}
	if place != "" {
		r.positions[place] = position
	}
	return nil
}

func (r *topicReader) storedPosition(name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.positions[name], nil
}

func (r *topicReader) recordLoss(_ context.Context, _ time.Time, reason string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = append(r.lost, reason)
	return nil
}

// startReader reads until the returned function is called.
func (r *topicReader) startReader() (stop func() error) {
	r.t.Helper()
	r.reader = topic.New(topic.Config{Brokers: r.brokers, Topics: []string{name}}, name,
		topic.Options{StoreEvents: r.storeEvents, StoredPosition: r.storedPosition, RecordLoss: r.recordLoss, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	r.ended = make(chan error, 1)
	go func() { r.ended <- r.reader.Run(ctx) }()
	r.t.Cleanup(cancel)
	return func() error {
		cancel()
		return <-r.ended
	}
}

// awaitCondition waits for a condition, with the lock held.
func (r *topicReader) awaitCondition(what string, met func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(10 * time.Millisecond) {
		r.mu.Lock()
		is := met()
		r.mu.Unlock()
		if is {
			return
		}
		if time.Now().After(deadline) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("%s: events %v, places %v, lost %v", what, r.ids, r.positions, r.lost)
		}
	}
}

func (r *topicReader) awaitPositions() {
	r.awaitCondition("all partitions have a position", func() bool { return len(r.positions) == 2 })
}

func (r *topicReader) writeEvents(partition int32, ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		text := `{"apiVersion":"audit.k8s.io/v1","auditID":"` + id + `","stage":"ResponseComplete","verb":"patch"}`
		switch id {
		case "broken":
			text = `{"apiVersion":`
		case azureID:
			text = `{"records":[{"category":"kube-audit","time":"2026-01-02T03:04:06Z","properties":{"log":` + strconv.Quote(text) + `}}]}`
		case cloudWatchID:
			text = zip(r.t, `{"messageType":"DATA_MESSAGE","logStream":"kube-apiserver-audit-1","logEvents":[{"timestamp":1,"message":`+strconv.Quote(text)+`}]}`)
		}
		if err := r.client.ProduceSync(r.t.Context(), &kgo.Record{Topic: name, Partition: partition, Value: []byte(text)}).FirstErr(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *topicReader) awaitEvents(ids ...string) {
	r.t.Helper()
	slices.Sort(ids)
	r.awaitCondition(fmt.Sprint("events ", ids), func() bool {
		got := slices.Clone(r.ids)
		slices.Sort(got)
		return slices.Equal(got, ids)
	})
}

func TestTopicIsReadFromEndThenFromPosition(t *testing.T) {
	r := newTopicReader(t)
	r.writeEvents(0, "before")
	stop := r.startReader()
	r.awaitPositions()
	r.stopReader(stop)
	r.writeEvents(0, "a", "broken", "b")
	r.writeEvents(1, "c")
	stop = r.startReader()
	r.awaitEvents("a", "b", "c")
	if _, malformed := r.reader.Status(); malformed != 1 {
		t.Errorf("%d malformed", malformed)
	}
	r.stopReader(stop)
	r.writeEvents(1, "d")
	stop = r.startReader()
	r.awaitEvents("a", "b", "c", "d")
	r.stopReader(stop)
	if len(r.lost) != 1 || !strings.Contains(r.lost[0], "not audit events") {
		t.Errorf("lost %q", r.lost)
	}
}

func TestRemovedRecordsAreReportedAsLoss(t *testing.T) {
	r := newTopicReader(t)
	stop := r.startReader()
	r.awaitPositions()
	r.stopReader(stop)
	r.writeEvents(0, "a", "b", "c")
	part := kmsg.NewDeleteRecordsRequestTopicPartition()
	part.Offset = 2
	of := kmsg.NewDeleteRecordsRequestTopic()
	of.Topic, of.Partitions = name, []kmsg.DeleteRecordsRequestTopicPartition{part}
	drop := kmsg.NewPtrDeleteRecordsRequest()
	drop.Topics = []kmsg.DeleteRecordsRequestTopic{of}
	if _, err := drop.RequestWith(t.Context(), r.client); err != nil {
		t.Fatal(err)
	}
	stop = r.startReader()
	r.awaitEvents("c")
	r.stopReader(stop)
	if len(r.lost) != 1 || !strings.Contains(r.lost[0], "partition 0 of the audit topic audit") {
		t.Errorf("lost %q", r.lost)
	}
}

func TestReaderEndsWhenStoreFails(t *testing.T) {
	r := newTopicReader(t)
	r.storeError = errors.New("disk gone")
	r.startReader()
	if err := <-r.ended; !errors.Is(err, r.storeError) {
		t.Error(err)
	}
}

func TestUnreachableTopicIsReported(t *testing.T) {
	r := newTopicReader(t)
	r.brokers = []string{"127.0.0.1:1"}
	stop := r.startReader()
	r.awaitCondition("the topic cannot be read", func() bool {
		status, _ := r.reader.Status()
		return !status.OK()
	})
	r.stopReader(stop)
}

func TestValidationErrorsNameTheirKeys(t *testing.T) {
	for want, c := range map[string]topic.Config{
		"":                     {},
		"kafka.topics: none":   {Brokers: []string{"a:1"}},
		"kafka.brokers: miss":  {Topics: []string{"a"}},
		"kafka.brokers[0]: no": {Topics: []string{"a"}, Brokers: []string{"a"}},
		"kafka.topics[1]: \"a": {Topics: []string{"a", "a"}, Brokers: []string{"a:1"}},
	} {
		if err := c.Validate(); want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestRealBrokerIsRead reads compressed records of transactions, between which offsets are missing. It resumes at its
// position, and detects that the topic was recreated, each time with more records than were read. At last it reads the
// envelopes of clouds.
func TestRealBrokerIsRead(t *testing.T) {
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	require.Program(t, "mvn", "install Maven 3.8 or later")
	broker, err := kafka.Start(t.Context(), kafka.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Stop(); err != nil {
			t.Error(err)
		}
	})
	writer := func(o ...kgo.Opt) *kgo.Client {
		client, err := kgo.NewClient(append(o, kgo.SeedBrokers(broker.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.UnknownTopicRetries(-1), // a broker learns of a new topic a little later
			kgo.ProducerBatchCompression(kgo.ZstdCompression()))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return client
	}
	client := writer(kgo.TransactionalID("writer"))
	r := &topicReader{t: t, client: client, brokers: broker.Brokers(), positions: map[string]string{}}
	r.createTopic(2)
	transact := func(commit kgo.TransactionEndTry, ids ...string) {
		t.Helper()
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		r.writeEvents(0, ids...)
		if err := client.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
	transact(kgo.TryCommit, "before")
	stop := r.startReader()
	r.awaitPositions()
	transact(kgo.TryCommit, "a", "b")
	r.awaitEvents("a", "b")
	r.stopReader(stop)
	transact(kgo.TryCommit, "c")
	stop = r.startReader()
	r.awaitEvents("a", "b", "c")
	if _, malformed := r.reader.Status(); malformed > 0 || len(r.lost) > 0 {
		t.Errorf("%d malformed, lost %q", malformed, r.lost)
	}
	r.client = writer()
	more := []string{"d", "e", "f", "g", "h", "i", "j", "k"}
	r.recreateTopic(2)
	r.writeEvents(0, more...)
	r.awaitEvents("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k")
	r.stopReader(stop)
	r.recreateTopic(1)
	r.writeEvents(0, "l", "m", "n", "o", "p", "q", "r", "s", "t")
	stop = r.startReader()
	r.awaitEvents("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t")
	r.writeEvents(0, azureID, cloudWatchID)
	r.awaitEvents("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", azureID, cloudWatchID)
	r.awaitLoss("partition 0 of the audit topic audit does not hold what was read of it: it was recreated")
	r.awaitLoss("partition 1 of the audit topic audit is gone: the topic was recreated")
	r.stopReader(stop)
	if len(r.lost) != 3 {
		t.Errorf("lost %q", r.lost)
	}
}
