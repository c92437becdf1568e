package sinktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// testLanesDuringOutage names lanes while the destination cannot be reached, through a sink that has never reached it. That must
// not wait, and what is published there is not lost.
func testLanesDuringOutage(t testing.TB, h Harness) {
	if h.Cut == nil {
		t.Skip("this destination cannot be made unreachable")
	}
	f := newChangeFactory()
	messages := makeVersions(f, 4, 5)
	h.Cut(t)
	sink := h.New(t)
	t.Cleanup(func() { closeSink(t, sink) })
	p := publisher{t: t, sink: sink}
	for _, m := range messages {
		p.askLane(m.Change, nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond) // any moment will do
	defer cancel()
	lane := p.askLane(messages[0].Change, nil)
	var rejected *sinks.RejectedError
	if n, err := p.publishBatch(ctx, lane, messages[:1]); n != 0 || err == nil || errors.As(err, &rejected) {
		t.Errorf("lane %q of an unreachable destination took %d messages (%v)", lane, n, err)
	}
	if pinger, ok := sink.(sinks.Pinger); ok {
		if err := pinger.Ping(ctx); err == nil {
			t.Error("an unreachable destination is said to be there")
		}
	}
	h.Restore(t)
	awaitReachable(t, sink).publishEverything(messages)
	again := map[sinks.Lane][]int{p.laneOf(messages[0].Change): {0}} // it may have been on its way while there was no answer
	newPublishedTruth(h, f, p, messages).checkOrder(t, again)
}

// testReleasedLanes publishes through lanes that the sink was told to forget.
func testReleasedLanes(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	forgetter, ok := p.sink.(sinks.LaneReleaser)
	if !ok {
		t.Skip("the sink has nothing to forget")
	}
	messages := makeVersions(f, 8, 12)
	for part := range 3 {
		some := messages[part*32 : (part+1)*32]
		var lanes []sinks.Lane
		for lane, batch := range p.byLane(some) {
			p.publishAll(lane, batch)
			lanes = append(lanes, lane)
		}
		if part > 0 { // not all of them, once
			lanes = lanes[:len(lanes)/2]
		}
		forgetter.ReleaseLanes(lanes)
	}
	newPublishedTruth(h, f, p, messages).checkOnce(t)
}

// testRepartitioning has the destination change its lanes twice, publishing before, between and behind. Every change must be
// there once, in the order of its lane, and a later sink goes on with lanes that it is told of.
func testRepartitioning(t testing.TB, h Harness) {
	if h.Grow == nil {
		t.Skip("the lanes of this destination do not change")
	}
	f, p := newChangeFactory(), openSink(t, h)
	messages := makeVersions(f, 8, 12)
	whole := &publishedTruth{h: h, f: f, lanes: map[sinks.Lane][]sinks.Message{}}
	for part := range 3 {
		lanes := p.byLane(messages[part*32 : (part+1)*32])
		for lane, batch := range lanes {
			p.publishAll(lane, batch)
			whole.lanes[sinks.Lane(fmt.Sprint("before growth ", part, ": ", lane))] = batch
		}
		if part < 2 {
			checkResumedLanes(t, h, lanes)
			h.Grow(t)
			p.awaitReplacement(messages[0])
		}
	}
	whole.checkOnce(t)
}

// awaitReplacement waits until the sink has noticed that its lanes are others now. Until they are replaced it names the old ones.
func (p publisher) awaitReplacement(m sinks.Message) {
	p.t.Helper()
	changing := p.sink.(sinks.Repartitioner)
	before := p.askLane(m.Change, nil)
	p.retryUntilDone("the lanes are replaced", func(context.Context) error {
		due := changing.PendingRepartitions()
		if now := p.askLane(m.Change, nil); now != before {
			p.t.Errorf("lane %q was replaced by %q without a word", before, now)
		}
		if len(due) == 0 {
			return errors.New("not yet")
		}
		for _, r := range due {
			changing.ApplyRepartition(r)
		}
		return nil
	})
}

// checkResumedLanes fails the test unless a later sink names the lanes that it is told of.
func checkResumedLanes(t testing.TB, h Harness, lanes map[sinks.Lane][]sinks.Message) {
	t.Helper()
	p := openSink(t, h)
	p.sink.(sinks.Repartitioner).ResumeLanes(slices.Collect(maps.Keys(lanes)))
	for lane, batch := range lanes {
		if got := p.askLane(batch[0].Change, nil); got != lane {
			t.Errorf("%s is in lane %q, and was left in %q", batch[0].Change.ID(), got, lane)
		}
	}
}
