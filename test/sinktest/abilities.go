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

// testLanesDuringOutage asks for lanes while the destination is unreachable, of a sink that has never reached it. That must
// not block, and messages published to these lanes are not lost.
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
		t.Errorf("lane %q of an unreachable destination accepted %d messages (%v)", lane, n, err)
	}
	if pinger, ok := sink.(sinks.Pinger); ok {
		if err := pinger.Ping(ctx); err == nil {
			t.Error("Ping of an unreachable destination succeeded")
		}
	}
	h.Restore(t)
	awaitReachable(t, sink).publishEverything(messages)
	again := map[sinks.Lane][]int{p.laneOf(messages[0].Change): {0}} // it may have arrived although there was no response
	newPublishedTruth(h, f, p, messages).checkOrder(t, again)
}

// testReleasedLanes publishes through lanes after ReleaseLanes.
func testReleasedLanes(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	releaser, ok := p.sink.(sinks.LaneReleaser)
	if !ok {
		t.Skip("the sink is no LaneReleaser")
	}
	messages := makeVersions(f, 8, 12)
	for part := range 3 {
		some := messages[part*32 : (part+1)*32]
		var lanes []sinks.Lane
		for lane, batch := range p.byLane(some) {
			p.publishAll(lane, batch)
			lanes = append(lanes, lane)
		}
		if part > 0 { // the second time, not all of them
			lanes = lanes[:len(lanes)/2]
		}
		releaser.ReleaseLanes(lanes)
	}
	newPublishedTruth(h, f, p, messages).checkOnce(t)
}

// testRepartitioning changes the layout of the destination twice, and publishes before, between and after. Every change must
// be there once, in the order of its lane, and a later sink resumes lanes that it gets by ResumeLanes.
func testRepartitioning(t testing.TB, h Harness) {
	if h.Grow == nil {
		t.Skip("the lanes of this destination do not change")
	}
	f, p := newChangeFactory(), openSink(t, h)
	messages := makeVersions(f, 8, 12)
	all := &publishedTruth{h: h, f: f, lanes: map[sinks.Lane][]sinks.Message{}}
	for part := range 3 {
		lanes := p.byLane(messages[part*32 : (part+1)*32])
		for lane, batch := range lanes {
			p.publishAll(lane, batch)
			all.lanes[sinks.Lane(fmt.Sprint("before growth ", part, ": ", lane))] = batch
		}
		if part < 2 {
			checkResumedLanes(t, h, lanes)
			h.Grow(t)
			p.awaitReplacement(messages[0])
		}
	}
	all.checkOnce(t)
}

// checkResumedLanes fails the test unless a later sink returns the lanes that ResumeLanes has passed to it.
func checkResumedLanes(t testing.TB, h Harness, lanes map[sinks.Lane][]sinks.Message) {
	t.Helper()
	p := openSink(t, h)
	p.sink.(sinks.Repartitioner).ResumeLanes(slices.Collect(maps.Keys(lanes)))
	for lane, batch := range lanes {
		if got := p.askLane(batch[0].Change, nil); got != lane {
			t.Errorf("%s is in lane %q, and was in %q before the restart", batch[0].Change.ID(), got, lane)
		}
	}
}
