package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// throttlingBroker is a fake broker with throttle times. Like Kafka it answers at once, and then processes no request, here
// of any connection, until the throttle time is over.
type throttlingBroker struct {
	t                 *testing.T
	cluster           *kfake.Cluster
	closedConnections atomic.Int64 // connections that the client has closed
	checks            atomic.Int64 // requests without batches, each on a connection of its own

	mu         sync.Mutex
	waits      []time.Duration // throttle times of the next answers
	mutedUntil time.Time       // end of the throttle time
	early      int             // requests that arrived before that
	seen       map[[2]int32]bool
	mayRepeat  bool // a connection that the broker does not read is replaced, and its batches are sent again
}

// bufferedConn is a connection that buffers what is written, as TCP does; a writer to a virtual network waits for the
// reader.
type bufferedConn struct {
	net.Conn
	written           chan []byte
	closed            chan struct{}
	closedConnections *atomic.Int64
	end               sync.Once
}

func newBufferedConn(c net.Conn, given *atomic.Int64) *bufferedConn {
	r := &bufferedConn{Conn: c, closedConnections: given, written: make(chan []byte, 100), closed: make(chan struct{})}
	go func() {
		for {
			select {
			case b := <-r.written:
				_, _ = c.Write(b) // a failure shows when the answer is read
			case <-r.closed:
				return
			}
		}
	}()
	return r
}

func (r *bufferedConn) Write(b []byte) (int, error) {
	select {
	case r.written <- slices.Clone(b):
		return len(b), nil
	case <-r.closed:
		return 0, net.ErrClosed
	}
}

func (r *bufferedConn) Close() error {
	r.end.Do(func() {
		r.closedConnections.Add(1)
		close(r.closed)
	})
	return r.Conn.Close()
}

// openThrottledSink opens a sink, in a bubble of virtual time, on a throttling broker.
func openThrottledSink(t *testing.T, timeout time.Duration) (*throttlingBroker, *Sink, *logs.Buffer) {
	t.Helper()
	network := &kfake.VirtualNetwork{}
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.Ports(9092), kfake.SeedTopics(2, topicA), kfake.ListenFn(network.Listen))
	b := &throttlingBroker{t: t, cluster: c, seen: map[[2]int32]bool{}}
	c.ControlKey(int16(kmsg.Produce), b.produce)
	s, log := openSinkWithLog(t, Config{Brokers: brokers, Topic: topicA, BatchBytes: minBatchBytes, RequestTimeout: timeout})
	s.cluster.Dialer.DialContext = func(ctx context.Context, kind, address string) (net.Conn, error) {
		c, err := network.DialContext(ctx, kind, address)
		if err != nil {
			return nil, err
		}
		return newBufferedConn(c, &b.closedConnections), nil
	}
	for p := range 2 { // the connections and numbers of both lanes
		mustPublish(t, s, laneName(topicA, int32(p), 2), pods("p"+itoa(p), 1, 2))
	}
	return b, s, log
}

func (b *throttlingBroker) produce(r kmsg.Request) (kmsg.Response, error, bool) {
	b.cluster.KeepControl()
	if len(r.(*kmsg.ProduceRequest).Topics) == 0 {
		return b.answerCheck(r.ResponseKind().(*kmsg.ProduceResponse))
	}
	b.mu.Lock()
	muted := time.Until(b.mutedUntil)
	if muted > 0 {
		b.early++
	}
	b.mu.Unlock()
	if muted > 0 {
		b.cluster.SleepControl(func() {
			select {
			case <-time.After(muted):
			case <-b.t.Context().Done(): // it ends before the cluster is closed
			}
		})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	request := r.(*kmsg.ProduceRequest)
	answer := r.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range request.Topics {
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic, topic.TopicID = t.Topic, t.TopicID
		for _, asked := range t.Partitions {
			part := kmsg.NewProduceResponseTopicPartition()
			part.Partition, part.BaseOffset = asked.Partition, -1
			topic.Partitions = append(topic.Partitions, part)
			batch := [2]int32{asked.Partition, int32(binary.BigEndian.Uint32(asked.Records[record.AtSequence:]))}
			if b.seen[batch] && !b.mayRepeat {
				b.t.Errorf("batch %d of partition %d is sent again", batch[1], batch[0])
			}
			b.seen[batch] = true
		}
		answer.Topics = append(answer.Topics, topic)
	}
	if len(b.waits) > 0 {
		answer.ThrottleMillis = int32(b.waits[0].Milliseconds())
		b.mutedUntil, b.waits = time.Now().Add(b.waits[0]), b.waits[1:]
	}
	return answer, nil, true
}

// answerCheck answers a request on a connection that is not muted: the quota applies to it all the same.
func (b *throttlingBroker) answerCheck(answer *kmsg.ProduceResponse) (kmsg.Response, error, bool) {
	b.checks.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if left := time.Until(b.mutedUntil); left > 0 {
		answer.ThrottleMillis = int32(left.Milliseconds()) + 1
	}
	return answer, nil, true
}

// throttle sets the throttle times of the next answers.
func (b *throttlingBroker) throttle(waits ...time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits, b.early = waits, 0
}

// earlyRequests returns how many requests arrived early since the last throttle, and fails the test if connections were
// closed.
func (b *throttlingBroker) earlyRequests() (early int) {
	b.t.Helper()
	if n := b.closedConnections.Load() - b.checks.Load(); n != 0 {
		b.t.Errorf("%d connections were given up", n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.early
}

func TestAllLanesWaitForAThrottlingBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, _ := openThrottledSink(t, 2*time.Second)
		b.throttle(20 * time.Second)
		mustPublish(t, s, laneName(topicA, 0, 2), pods("p0", 2, 3))
		listens := time.Now().Add(20 * time.Second)
		var lanes sync.WaitGroup
		for p := range 2 {
			lanes.Go(func() {
				mustPublish(t, s, laneName(topicA, int32(p), 2), pods("p"+itoa(p), 3, 5))
				if now := time.Now(); now.Before(listens) {
					t.Errorf("lane %d is answered %v before the broker listens", p, listens.Sub(now))
				}
			})
		}
		lanes.Wait()
		if early := b.earlyRequests(); early != 0 {
			t.Errorf("%d requests came early", early)
		}
		if l := s.lanes.byName[laneName(topicA, 0, 2)]; l.window.limit != maxInFlight {
			t.Errorf("after a wait %d batches may be in flight", l.window.limit)
		}
	})
}

// The other batches of the window are under way when the first answer arrives: they wait on the connection.
func TestAWindowThatIsThrottledOnItsWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, _ := openThrottledSink(t, 2*time.Second)
		began := time.Now()
		b.throttle(7*time.Second, 0, 30*time.Second, time.Second)
		mustPublish(t, s, laneName(topicA, 0, 2), pods("p0", 2, 20))
		if took := time.Since(began); took < 38*time.Second {
			t.Errorf("it took %v", took)
		}
		if early := b.earlyRequests(); early == 0 {
			t.Error("nothing was under way: the test shows nothing")
		}
	})
}

// The time is wrong, or the quota was raised: the broker would answer on another connection.
func TestAnAnnouncedTimeOfDaysEndsWithItsQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, _ := openThrottledSink(t, 2*time.Second)
		b.throttle(74 * time.Hour)
		mustPublish(t, s, laneName(topicA, 0, 2), pods("p0", 2, 3))
		time.Sleep(20 * time.Second)
		if slowed := s.cluster.Throttling(); !strings.Contains(slowed.Cause, "for another 73h59m40s") ||
			!strings.Contains(slowed.Remedy, `producer_byte_rate of the client ID "kubecdc"`) {
			t.Errorf("slowed: %+v", slowed)
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("a quota is reported as an outage: %v", err)
		}
		b.mu.Lock()
		b.mutedUntil, b.mayRepeat = time.Time{}, true
		b.mu.Unlock()
		began := time.Now()
		mustPublish(t, s, laneName(topicA, 0, 2), pods("p0", 3, 4))
		if waited := time.Since(began); waited > 10*time.Second { // of virtual time
			t.Errorf("waited for %v", waited)
		}
	})
}

func TestACancelledPublishDoesNotWaitForAQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, log := openThrottledSink(t, 2*time.Second)
		lane := laneName(topicA, 0, 2)
		b.throttle(time.Hour)
		mustPublish(t, s, lane, pods("p0", 2, 3))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if n, err := s.Publish(ctx, lane, pods("p0", 3, 5)); n != 0 || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("published %d after %v: %v", n, time.Since(began), err)
		}
		if len(log.Lines()) != 1 {
			t.Errorf("a wait is no failure:\n%s", log)
		}
	})
}

func TestThrottlingIsLoggedWhenItStartsAndEnds(t *testing.T) {
	t.Parallel()
	const calm = 15 * time.Second // as long as Kafka by default measures rates, and more
	synctest.Test(t, func(t *testing.T) {
		b, s, log := openThrottledSink(t, 2*time.Second)
		lane := laneName(topicA, 0, 2)
		wantLogged := func(begins, ends int, slowed bool) {
			t.Helper()
			synctest.Wait()
			if now := s.cluster.Throttling(); now.OK() == slowed {
				t.Errorf("slowed %+v, want %v", now, slowed)
			}
			if x, y := strings.Count(log.String(), "kafka throttles requests"), strings.Count(log.String(), "no longer throttles requests"); x != begins || y != ends {
				t.Errorf("logged %d starts and %d ends, want %d and %d:\n%s", x, y, begins, ends, log)
			}
		}
		wantLogged(0, 0, false)
		for v := 2; v < 40; v++ { // every other answer
			b.throttle(time.Duration(v%2) * 5 * time.Second)
			mustPublish(t, s, lane, pods("p0", v, v+1))
			wantLogged(min(1, v-2), 0, v != 2)
			time.Sleep(calm / 3)
		}
		time.Sleep(calm - time.Nanosecond)
		wantLogged(1, 0, true)
		time.Sleep(time.Nanosecond)
		wantLogged(1, 1, false)
		b.throttle(time.Second)
		mustPublish(t, s, lane, pods("p0", 40, 41))
		wantLogged(2, 1, true)
	})
}
