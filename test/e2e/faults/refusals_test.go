package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// refusalSize is what TestRefusedChangesStopNoOthers runs. With KUBECDC_E2E_REFUSALS it is everything, and what is
// acceptable has to arrive within a minute after the load; else a small part, and that bound is namedWithin.
func refusalSize() (percents, lanes []int, objects int, within time.Duration) {
	if os.Getenv("KUBECDC_E2E_REFUSALS") == "" {
		return []int{90}, []int{1, 16}, 60, namedWithin
	}
	return []int{1, 20, 60, 90, 99}, []int{1, 16, 300}, 600, time.Minute
}

// maxRefusals is how many dead letters a destination makes that refuses everything.
const maxRefusals = 20

// limit is what the destinations take, in bytes; heavyBytes do not fit, however they are compressed.
const limit, heavyBytes = 4000, 12_000

// refuser is one sink with its destination.
type refuser struct {
	sink    string
	refuse  func()                        // from now on what is larger than the limit is refused
	arrived func() (objects []bus.Record) // so far, in the order in which they came
}

// refusers are a webhook, a topic and a stream for each number of lanes.
type refusers struct {
	*fixture
	all     []refuser
	unblock func() // nil unless a stream has several lanes
}

// refusers makes the destinations. limit is in force from the start if atOnce, else with refuse.
func (c *fixture) refusers(lanes []int, atOnce int) *refusers {
	c.t.Helper()
	r := &refusers{fixture: c}
	c.settings.DrainTimeout = "1s" // a stop waits for what is refused
	for _, n := range lanes {
		r.webhook(n, atOnce)
		r.topicOf(n, atOnce)
		r.streamOf(n, atOnce)
	}
	return r
}

func (r *refusers) add(one refuser, kind string, keys mapping, more mapping) {
	sink := mapping{"name": one.sink, kind: keys}
	for k, v := range more {
		sink[k] = v
	}
	r.settings.Sinks = append(r.settings.Sinks, sink)
	r.all = append(r.all, one)
}

// webhook has a receiver that answers 422 to what is larger than its limit.
func (r *refusers) webhook(lanes, atOnce int) {
	var most atomic.Int64
	most.Store(int64(atOnce))
	var mu sync.Mutex
	var came []bus.Record
	server := r.receiver(func(body string) int {
		if m := most.Load(); m > 0 && int64(len(body)) > m {
			return http.StatusUnprocessableEntity
		}
		var record bus.Record
		if err := json.Unmarshal([]byte(body), &record); err != nil {
			r.t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		came = append(came, record)
		return http.StatusNoContent
	})
	server.Start()
	r.add(refuser{
		sink:   fmt.Sprint("webhook-", lanes),
		refuse: func() { most.Store(limit) },
		arrived: func() []bus.Record {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(came)
		},
	}, "webhook", mapping{"url": server.URL, "lanes": lanes}, cloudEvents)
}

// topicOf has a topic with as many partitions.
func (r *refusers) topicOf(lanes, atOnce int) {
	name := fmt.Sprintf("%s.k%d", r.name, lanes)
	var settings []string
	if atOnce > 0 {
		settings = []string{"max.message.bytes", strconv.Itoa(atOnce)}
	}
	r.createTopic(name, lanes, settings...)
	reader, err := bus.NewKafka(r.kafka.Brokers(), name)
	r.must(err)
	r.t.Cleanup(reader.Close)
	refuse := func() {
		r.limitTopic(name)
		r.awaitLimit(name, lanes)
	}
	r.add(refuser{sink: fmt.Sprint("kafka-", lanes), refuse: refuse, arrived: r.reading(reader)},
		"kafka", mapping{"brokers": r.kafka.Brokers(), "topic": name}, mapping{"onOversize": "deadLetter"})
}

// limitTopic lowers max.message.bytes of a topic.
func (r *refusers) limitTopic(name string) {
	value := strconv.Itoa(limit)
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Op, config.Value = "max.message.bytes", kmsg.IncrementalAlterConfigOpSet, &value
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName, resource.Configs = kmsg.ConfigResourceTypeTopic, name, append(resource.Configs, config)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	r.asKafkaAdmin(func(ctx context.Context, client *kgo.Client) {
		answer, err := request.RequestWith(ctx, client)
		r.must(err)
		r.must(kerr.ErrorForCode(answer.Resources[0].ErrorCode))
	})
}

// awaitLimit waits until the broker refuses what is larger than the limit, in each partition of a topic: it answers that it
// has a setting before it goes by it. The batch has no valid checksum, which the broker looks at after the size, so that it
// never stores one.
func (r *refusers) awaitLimit(topic string, partitions int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Brokers()...), kgo.MaxVersions(kversion.V3_0_0()))
	r.must(err)
	defer client.Close()
	records := make([]byte, 2*limit)
	batch := kmsg.RecordBatch{
		Length: int32(49 + len(records)), Magic: 2, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 1, Records: records,
	}
	for p := range partitions {
		request := kmsg.NewPtrProduceRequest()
		request.Acks, request.TimeoutMillis = -1, 5000
		to := kmsg.NewProduceRequestTopic()
		at := kmsg.NewProduceRequestTopicPartition()
		at.Partition, at.Records = int32(p), batch.AppendTo(nil)
		to.Topic, to.Partitions = topic, append(to.Partitions, at)
		request.Topics = append(request.Topics, to)
		r.await("the limit of "+topic, func() string {
			answer, err := client.SeedBrokers()[0].Request(r.t.Context(), request)
			if err != nil {
				return err.Error()
			}
			code := answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode
			if code == kerr.MessageTooLarge.Code {
				return ""
			}
			return fmt.Sprint("the broker answers ", kerr.ErrorForCode(code))
		})
	}
}

// streamOf has a stream. Its objects are in one lane; for several, the server refuses the subject of one object, which
// splits them, until unblock.
func (r *refusers) streamOf(lanes, atOnce int) {
	server := r.nats
	if lanes > 1 {
		server = r.restrictedNATS()
	}
	js, hangUp, err := bus.Operate(server.URL())
	r.must(err)
	r.t.Cleanup(hangUp)
	name := fmt.Sprintf("%s-n%d", r.name, lanes)
	config := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, AllowBatchPublish: lanes == 1, MaxMsgSize: int32(atOnce)}
	_, err = js.CreateStream(r.t.Context(), config)
	r.must(err)
	reader, err := bus.NewNATS(server.URL(), name)
	r.must(err)
	r.t.Cleanup(reader.Close)
	refuse := func() {
		config.MaxMsgSize = limit
		_, err := js.UpdateStream(r.t.Context(), config)
		r.must(err)
	}
	r.add(refuser{sink: fmt.Sprint("nats-", lanes), refuse: refuse, arrived: r.reading(reader)}, "nats",
		mapping{"url": server.URL(), "stream": name, "subject": name + ".{resource}.{namespace}.{name}", "lanes": lanes}, mapping{"onOversize": "deadLetter"})
}

// restrictedNATS is a server that refuses the subjects of objects called blocked.
func (r *refusers) restrictedNATS() *natsserver.Server {
	dir := r.t.TempDir()
	path := filepath.Join(dir, "rights.conf")
	r.must(os.WriteFile(path, []byte(`users: [{user: "any", password: "any", permissions: {publish: {deny: ["*.*.*.blocked"]}}}]`), 0o600))
	server, err := natsserver.Start(r.t.Context(), natsserver.Options{Dir: dir, Config: "authorization {\n  include \"rights.conf\"\n}\nno_auth_user: \"any\"\n"})
	r.must(err)
	r.t.Cleanup(func() { check(r.t, server.Kill()) })
	before := r.unblock
	r.unblock = func() {
		if before != nil {
			before()
		}
		r.must(os.WriteFile(path, []byte(`users: [{user: "any", password: "any"}]`), 0o600))
		r.must(server.Restart(r.t.Context()))
	}
	return server
}

// reading collects what a bus has.
func (r *refusers) reading(from bus.Reader) func() []bus.Record {
	var came []bus.Record
	return func() []bus.Record {
		some, err := from.Read(r.t.Context())
		came = append(came, some...)
		if err != nil {
			r.t.Log(err) // it may be away for a moment
		}
		return came
	}
}

// letters returns the dead letters of a sink: object and type. The exporter is stopped.
func (r *refusers) letters(sink string) map[string]bool {
	r.t.Helper()
	code, out := r.command("deadletters", "list", "--sink", sink, "-o", "json", "--config", r.exporter.Config())
	if code != 0 {
		r.t.Fatalf("deadletter list: exit %d\n%s", code, out)
	}
	found := map[string]bool{}
	for line := range strings.Lines(out) {
		var letter struct{ Name, Type string }
		r.must(json.Unmarshal([]byte(line), &letter))
		found[letter.Name+" "+letter.Type] = true
	}
	return found
}

// restart ends the exporter, by force or not, and starts it again.
func (r *refusers) restart(force bool) {
	r.t.Helper()
	end := r.exporter.Stop
	if force {
		end = r.exporter.Kill
	}
	r.must(end())
	r.must(r.exporter.Launch(r.t.Context()))
}

// isHeavy spreads a share of the objects evenly.
func isHeavy(object, percent int) bool { return object*37%100 < percent }

// TestRefusedChangesStopNoOthers has webhooks, topics and streams refuse a share of the changes from a moment on, under load
// and while the exporter is restarted twice. Every other change arrives, in order, and every refused one is a dead letter.
func TestRefusedChangesStopNoOthers(t *testing.T) {
	percents, lanes, objects, within := refusalSize()
	s := surround(t)
	for _, percent := range percents {
		t.Run(fmt.Sprintf("percent=%d", percent), func(t *testing.T) {
			r := s.fixture(t).refusers(lanes, 0)
			r.create(workload.ConfigMaps, "blocked")
			r.prepare()
			r.must(r.exporter.Launch(t.Context()))
			for i := range 2 * lanes[len(lanes)-1] {
				r.create(workload.ConfigMaps, fmt.Sprint("first-", i))
			}
			r.awaitRefusers("what comes first", func(one refuser, came map[string][]string) string {
				if len(came) == 0 {
					return "nothing has arrived"
				}
				return ""
			})
			for _, one := range r.all {
				one.refuse()
			}
			r.load(objects, percent)
			ended := time.Now()
			if r.unblock != nil {
				r.unblock()
			}
			r.awaitRefusers("what is acceptable", func(_ refuser, came map[string][]string) string {
				for i := range objects {
					if name := fmt.Sprint("object-", i); !isHeavy(i, percent) && len(came[name]) < 2 {
						return fmt.Sprintf("of %s there is %q", name, came[name])
					}
				}
				return ""
			})
			if took := time.Since(ended); took > within {
				t.Errorf("what is acceptable took %v to arrive after the load", took)
			} else {
				t.Logf("what is acceptable had arrived %v after the load", took.Round(time.Second))
			}
			r.await("the rest", func() string {
				for _, one := range r.all {
					if text := r.page("/metrics"); !strings.Contains(text, fmt.Sprintf("kubecdc_sink_backlog_changes{sink=%q} 0\n", one.sink)) {
						return one.sink + " is not done"
					}
				}
				return ""
			})
			r.must(r.exporter.Stop())
			for _, one := range r.all {
				r.judge(one, objects, percent)
			}
		})
	}
}

// load creates objects and changes each, and restarts the exporter meanwhile.
func (r *refusers) load(objects, percent int) {
	r.t.Helper()
	numbers := make(chan int)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for i := range numbers {
				kind, name := workload.ConfigMaps, fmt.Sprint("object-", i)
				if isHeavy(i, percent) {
					kind = noise(heavyBytes)
				}
				if err := r.cluster.Create(r.t.Context(), kind, r.name, name); err != nil {
					r.t.Error(err)
				}
				if err := r.cluster.Change(r.t.Context(), workload.ConfigMaps, r.name, name, 1); err != nil {
					r.t.Error(err)
				}
			}
		})
	}
	for i := range objects {
		switch i {
		case objects / 3:
			r.restart(false)
		case 2 * objects / 3:
			r.restart(true)
		}
		numbers <- i
	}
	close(numbers)
	writers.Wait()
}

// awaitRefusers waits until nothing is missing at any destination. came has the types of the changes of each object, each
// once, in the order in which they came first.
func (r *refusers) awaitRefusers(what string, missing func(one refuser, came map[string][]string) string) {
	r.t.Helper()
	r.await(what, func() string {
		for _, one := range r.all {
			if text := missing(one, arrivals(one)); text != "" {
				return one.sink + ": " + text + "\n" + r.page("/readyz?verbose")
			}
		}
		return ""
	})
}

func arrivals(at refuser) map[string][]string {
	came := map[string][]string{}
	for _, record := range at.arrived() {
		if record.Name != "" && !slices.Contains(came[record.Name], record.Type) {
			came[record.Name] = append(came[record.Name], record.Type)
		}
	}
	return came
}

// judge compares what has arrived with the dead letters.
func (r *refusers) judge(at refuser, objects, percent int) {
	r.t.Helper()
	came, dead, refused := arrivals(at), r.letters(at.sink), 0
	for i := range objects {
		name := fmt.Sprint("object-", i)
		want := []string{"added", "updated"}
		if isHeavy(i, percent) {
			want = nil
			refused += 2
		}
		if !slices.Equal(came[name], want) {
			r.t.Errorf("%s: of %s, heavy %v, there is %q", at.sink, name, want == nil, came[name])
		}
		for _, change := range []string{"added", "updated"} {
			if dead[name+" "+change] != (want == nil) {
				r.t.Errorf("%s: a dead letter of %s %s: %v, want %v", at.sink, name, change, dead[name+" "+change], want == nil)
			}
		}
	}
	if len(dead) != refused {
		r.t.Errorf("%s: %d dead letters, want %d", at.sink, len(dead), refused)
	}
}

// noChange is a limit that no change is below, and that lets brokers write what ends a transaction.
const noChange = 128

// TestADestinationThatRefusesEverythingMakesTwentyDeadLetters has destinations of all kinds that take no change, and
// restarts the exporter twice.
func TestADestinationThatRefusesEverythingMakesTwentyDeadLetters(t *testing.T) {
	_, lanes, _, _ := refusalSize()
	r := surround(t).fixture(t).refusers(lanes, noChange)
	for i := range 4 * maxRefusals {
		r.create(workload.ConfigMaps, fmt.Sprint("object-", i))
	}
	r.prepare()
	r.must(r.exporter.Launch(t.Context()))
	for _, force := range []bool{true, false} {
		r.awaitSuspected()
		r.restart(force)
	}
	r.awaitSuspected()
	r.must(r.exporter.Stop())
	for _, one := range r.all {
		if n := len(r.letters(one.sink)); n == 0 || n > maxRefusals {
			t.Errorf("%s: %d dead letters", one.sink, n)
		}
		if n := len(one.arrived()); n > 0 {
			t.Errorf("%s: %d changes have arrived", one.sink, n)
		}
	}
}

// TestANewDestinationThatRefusesMostGetsTheRest has destinations of one lane that refuse what comes first, more than one
// batch of it, and take what comes after.
func TestANewDestinationThatRefusesMostGetsTheRest(t *testing.T) {
	const refused, taken = 200, 5 // a batch has 80 of the refused ones
	r := surround(t).fixture(t).refusers([]int{1}, limit)
	r.prepare()
	for i := range refused {
		r.create(noise(heavyBytes), fmt.Sprint("heavy-", i))
	}
	for i := range taken {
		r.create(workload.ConfigMaps, fmt.Sprint("light-", i))
	}
	r.must(r.exporter.Launch(t.Context()))
	r.awaitRefusers("what is acceptable", func(_ refuser, came map[string][]string) string {
		if len(came) < taken {
			return fmt.Sprintf("%d of %d have arrived", len(came), taken)
		}
		return ""
	})
	r.must(r.exporter.Stop())
	for _, one := range r.all {
		if n := len(r.letters(one.sink)); n != refused {
			t.Errorf("%s: %d dead letters, want %d", one.sink, n, refused)
		}
	}
}

// awaitSuspected waits until each sink reports that its destination refuses everything.
func (r *refusers) awaitSuspected() {
	r.t.Helper()
	r.await("suspicion", func() string {
		text := r.page("/metrics")
		for _, one := range r.all {
			if !strings.Contains(text, fmt.Sprintf(`kubecdc_condition{code="SinkRejectsAll",component="sink/%s"`, one.sink)) {
				return one.sink + " is not suspected\n" + r.page("/readyz?verbose")
			}
		}
		return ""
	})
}
