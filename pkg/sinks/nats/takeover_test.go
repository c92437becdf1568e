package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func TestBatchesKeepTheContractOfTakeOvers(t *testing.T) {
	server := serve(t, "")
	sinktest.RunTakeOver(t, harness(server, server.URL()))
}

func TestTakeOversOverABadNetworkLoseRepeatAndReorderNothing(t *testing.T) {
	server := serve(t, "")
	p := listen(t, strings.TrimPrefix(server.URL(), "nats://"))
	h := harness(server, "nats://"+p.address())
	var acked atomic.Int64
	open := h.New
	h.New = func(t testing.TB) sinks.Sink { return fencedCounting{open(t).(sinks.Fenced), &acked} }
	stop := p.cutEvery(100*time.Millisecond, acked.Load)
	defer stop()
	sinktest.RunTakeOver(t, h)
}

// fencedCounting counts what is acknowledged.
type fencedCounting struct {
	sinks.Fenced
	acked *atomic.Int64
}

func (c fencedCounting) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := c.Fenced.Publish(ctx, lane, batch)
	c.acked.Add(int64(n))
	return n, err
}

// reign is a process that publishes numbered changes of one object until it is deposed.
type reign struct {
	t    testing.TB
	sink *Sink

	running sync.WaitGroup
	acked   atomic.Int64 // the newest version that is acknowledged
	err     error        // why it ended
}

// reigns fences a sink in a process of its own.
func reigns(t testing.TB, cfg Config, owner string) *reign {
	t.Helper()
	r := &reign{t: t, sink: opened(t, cfg, quiet)}
	r.fence(owner)
	return r
}

func (r *reign) fence(owner string) {
	r.t.Helper()
	for begun := time.Now(); ; {
		err := r.sink.Fence(r.t.Context(), sinks.Claim{Group: "group", Sink: "bus", Owner: owner}, []sinks.Lane{whole})
		if err == nil {
			return
		}
		if time.Since(begun) > patience {
			r.t.Fatal(err)
		}
	}
}

// versions are changes of one object.
func versions(first, last int) (batch []sinks.Message) {
	for v := first; v <= last; v++ {
		batch = append(batch, sinks.Message{Offset: uint64(v), Change: pod("web", v)})
	}
	return batch
}

// publishes publishes from a version on, many at once, until it is deposed.
func (r *reign) publishes(first int) {
	r.acked.Store(int64(first - 1))
	r.running.Go(func() {
		for begun := time.Now(); r.err == nil; {
			at := int(r.acked.Load())
			n, err := r.sink.Publish(r.t.Context(), whole, versions(at+1, at+2000))
			if r.acked.Add(int64(n)); errors.As(err, new(*sinks.DeposedError)) || time.Since(begun) > patience {
				r.err = err
			}
		}
	})
}

// tail is the newest version that the stream holds, of those from a place on that follow each other.
func (r *reign) tail(from sinks.Place) (newest int) {
	r.t.Helper()
	for begun := time.Now(); ; {
		newest = 0
		err := r.sink.Tail(r.t.Context(), map[sinks.Lane]sinks.Place{whole: from}, func(_ sinks.Lane, e sinks.Emitted) error {
			version := 0
			if _, err := fmt.Sscan(e.ResourceVersion, &version); err != nil {
				return err
			}
			if newest != 0 && version != newest+1 {
				r.t.Errorf("version %d follows %d", version, newest)
			}
			newest = version
			return nil
		})
		if err == nil {
			return newest
		}
		if time.Since(begun) > patience {
			r.t.Fatal(err)
		}
	}
}

// inTurn lets processes take over from each other, in the middle of batches. Each begins where the tail ends.
func inTurn(t *testing.T, cfg Config, lives, each int, before func(life int)) {
	var older *reign
	for life := range lives {
		place := sinks.Place(1)
		if older != nil {
			place = older.sink.Places()[whole]
		}
		newer, from := reigns(t, cfg, fmt.Sprint("life ", life)), 1
		if older != nil {
			older.running.Wait()
			deposedBy(t, older.err, fmt.Sprint("life ", life))
			from = max(newer.tail(place), int(older.acked.Load())) + 1
		}
		if life < lives-1 {
			newer.publishes(from)
			goal := int64(from + each)
			for begun := time.Now(); newer.acked.Load() < goal; time.Sleep(time.Millisecond) {
				if time.Since(begun) > patience {
					t.Fatalf("life %d got to %d", life, newer.acked.Load())
				}
			}
			before(life)
		}
		older = newer
	}
}

// continuous fails the test unless a stream holds each version of the object once, in order.
func continuous(t *testing.T, js jetstream.JetStream, stream string) (last int) {
	t.Helper()
	for _, m := range messages(t, js, stream) {
		id, ours := strings.CutPrefix(idOf(m.Headers(), m.Data()), "c/uid-web/")
		if !ours {
			continue
		}
		if last++; id != fmt.Sprintf("%d/updated", last) {
			t.Fatalf("%s is where %d should be", id, last)
		}
	}
	return last
}

func TestAnExporterInTheMiddleOfABatchIsTurnedAway(t *testing.T) {
	server := serve(t, "")
	inTurn(t, configFor(server.URL()), 12, 3000, func(int) {})
	t.Logf("%d versions", continuous(t, client(t, server.URL()), "K8S"))
}

func TestTakeOversWhileLeadersOfTheStreamDieLoseRepeatAndReorderNothing(t *testing.T) {
	servers := cluster(t, direct)
	js, cfg := client(t, servers.URL()), hasty(servers.URL())
	cfg.Create.Replicas = 3
	var killing sync.WaitGroup
	inTurn(t, cfg, 8, 2000, func(life int) {
		if life%2 == 0 {
			killing.Wait()
			killing.Go(func() {
				if err := killed(js, servers, "K8S", 1); err != nil {
					t.Error(err)
				}
			})
		}
	})
	killing.Wait()
	replicated(t, js, "K8S")
	t.Logf("%d versions", continuous(t, js, "K8S"))
}

// An exporter that slept, and knows where the stream ended then, finds the stream at that very end: only the fence has come.
func TestAnExporterThatWakesUpBeforeTheNewOnePublishesIsTurnedAway(t *testing.T) {
	server := serve(t, "")
	cfg := configFor(server.URL())
	older := reigns(t, cfg, "one")
	accepted(t, older.sink, pod("web", 1))
	newer := reigns(t, cfg, "two")
	for range 2 {
		_, err := deliver(t, older.sink, pod("web", 2))
		deposedBy(t, err, "two")
	}
	accepted(t, newer.sink, pod("web", 2))
	older.fence("one again")
	accepted(t, older.sink, pod("web", 3))
	_, err := deliver(t, newer.sink, pod("web", 4))
	deposedBy(t, err, "one again")
	if last := continuous(t, client(t, server.URL()), "K8S"); last != 3 {
		t.Errorf("the stream holds %d versions", last)
	}
}

func TestAFencedStreamThatIsMadeAnewIsFilledAgainByItsOwner(t *testing.T) {
	server := serve(t, "")
	js, cfg := client(t, server.URL()), configFor(server.URL())
	older := reigns(t, cfg, "one")
	accepted(t, older.sink, pod("web", 1))
	owner := reigns(t, cfg, "two")
	accepted(t, owner.sink, pod("web", 2), pod("web", 3))
	if err := js.DeleteStream(t.Context(), "K8S"); err != nil {
		t.Fatal(err)
	}
	var lost *sinks.LostError
	for begun := time.Now(); !errors.As(publishOne(t, owner.sink, 4), &lost); {
		if time.Since(begun) > patience {
			t.Fatal("the loss was not seen")
		}
	}
	_, err := deliver(t, older.sink, pod("web", 4))
	deposedBy(t, err, "two")
	if err := owner.sink.Restore(owner.sink.State(0), 4, nil); err != nil {
		t.Fatal(err)
	}
	if places := owner.sink.Places(); places[whole] > 2 {
		t.Errorf("what follows lies behind %d", places[whole])
	}
	accepted(t, owner.sink, pod("web", 1), pod("web", 2))
	if last := continuous(t, js, "K8S"); last != 2 {
		t.Errorf("the stream holds %d versions", last)
	}
}

func publishOne(t *testing.T, s *Sink, version int) error {
	_, err := deliver(t, s, pod("web", version))
	return err
}

// It has renewed its claim, as it does in a stream that was made anew, and the answer was lost.
func TestAnExporterIsNotDeposedByItself(t *testing.T) {
	server := serve(t, "")
	s := reigns(t, configFor(server.URL()), "one").sink
	l, err := s.ready(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tenure := s.tenure.Load()
	mine, fence := tenure.fence(), s.fenceOf(l, tenure.claim)
	for range 2 { // the first is not noted
		if _, err := fence.Take(t.Context(), tenure.claim, mine); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.stillOurs(t.Context(), l, 0); err != nil {
		t.Fatal(err)
	}
	accepted(t, s, pod("web", 1))
}

func TestAFencedStreamThatIsPurgedGoesOn(t *testing.T) {
	server := serve(t, "")
	cfg := configFor(server.URL())
	owner := reigns(t, cfg, "one")
	accepted(t, owner.sink, pod("web", 1))
	stream, err := client(t, server.URL()).Stream(t.Context(), "K8S")
	if err == nil {
		err = stream.Purge(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	accepted(t, owner.sink, pod("web", 2))
	newer := reigns(t, cfg, "two")
	if newest := newer.tail(1); newest != 2 {
		t.Errorf("the tail ends with %d", newest)
	}
	accepted(t, newer.sink, pod("web", 3))
}

func TestAStreamWithoutAPlaceForTheFenceIsAFaultWithARemedy(t *testing.T) {
	server := serve(t, "")
	js := client(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true})
	s := opened(t, configFor(server.URL()), quiet)
	err := s.Fence(t.Context(), sinks.Claim{Group: "group", Owner: "one"}, nil)
	var away *sinks.UnavailableError
	if !errors.As(err, &away) || !strings.Contains(away.Reason, "nats stream edit K8S --subjects k8s.>,kubecdc.fence.K8S.>") {
		t.Fatalf("got %v", err)
	}
	if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.K8S.>"}, AllowBatchPublish: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.Fence(t.Context(), sinks.Claim{Group: "group", Owner: "one"}, nil); err != nil {
		t.Fatal(err)
	}
	accepted(t, s, pod("web", 1))
}

// By message ID nothing refuses a message: it is said, and an older exporter is told before it sends more.
func TestByMessageIDAnOlderExporterIsToldBeforeItSendsMore(t *testing.T) {
	server := serve(t, "")
	js := client(t, server.URL())
	createStream(t, js, jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.>"}})
	cfg := configFor(server.URL())
	older := reigns(t, cfg, "one")
	accepted(t, older.sink, pod("web", 1))
	if all := older.sink.Cautions(); !slices.ContainsFunc(all, func(c string) bool { return strings.Contains(c, "allow_batched") }) {
		t.Errorf("cautions: %q", all)
	}
	places := older.sink.Places()
	accepted(t, older.sink, pod("web", 2))
	newer := reigns(t, cfg, "two")
	_, err := deliver(t, older.sink, pod("web", 3))
	deposedBy(t, err, "two")
	var tail []string
	if err := newer.sink.Tail(t.Context(), map[sinks.Lane]sinks.Place{whole: places[whole]}, func(_ sinks.Lane, e sinks.Emitted) error { tail = append(tail, e.ResourceVersion); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(tail) != 1 || tail[0] != "2" {
		t.Errorf("behind %d: %q", places[whole], tail)
	}
	accepted(t, newer.sink, pod("web", 3))
	if last := continuous(t, js, "K8S"); last != 3 {
		t.Errorf("the stream holds %d versions", last)
	}
}

func TestABucketIsFencedAndTellsWhatItHolds(t *testing.T) {
	server := serve(t, "")
	cfg := configFor(server.URL())
	cfg.Mode, cfg.Stream, cfg.Bucket, cfg.Subject = modeKV, "", "k8s", "{group}.{resource}.{namespace}.{name}"
	older := reigns(t, cfg, "one")
	accepted(t, older.sink, pod("a", 1), pod("b", 2), pod("a", 3))
	gone := pod("b", 4)
	gone.Type = event.Deleted
	accepted(t, older.sink, gone)
	newer := reigns(t, cfg, "two")
	_, err := deliver(t, older.sink, pod("a", 5))
	deposedBy(t, err, "two")
	var tail []string
	if err := newer.sink.Tail(t.Context(), map[sinks.Lane]sinks.Place{whole: 1}, func(_ sinks.Lane, e sinks.Emitted) error { tail = append(tail, e.ID); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := "c/uid-a/3/updated c/uid-b/4/deleted"; strings.Join(tail, " ") != want {
		t.Errorf("the bucket holds %q, want %s", tail, want)
	}
	accepted(t, newer.sink, pod("a", 5))
}

// state is taken out of the configuration: the fence in the stream is no other writer, and what is stored goes on.
func TestAnExporterWithoutAStateTakesNoOffenceAtAFence(t *testing.T) {
	server := serve(t, "")
	cfg := configFor(server.URL())
	before := opened(t, cfg, quiet)
	if err := before.Restore(nil, 0, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	accepted(t, before, pod("web", 1))
	state := before.State(0)
	stream, err := client(t, server.URL()).Stream(t.Context(), "K8S")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Subjects = append(config.Subjects, cfg.fencePrefix()+">")
	if _, err := client(t, server.URL()).UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	reigns(t, cfg, "one")
	s := opened(t, cfg, quiet)
	if err := s.Restore(state, offsets.Load(), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	accepted(t, s, pod("web", 2))
	if all := s.Cautions(); len(all) != 0 {
		t.Errorf("cautions: %q", all)
	}
	if last := continuous(t, client(t, server.URL()), "K8S"); last != 2 {
		t.Errorf("the stream holds %d versions", last)
	}
}
