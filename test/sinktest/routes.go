package sinktest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// testRoutedTopics publishes the changes of each object in turn to the sink's own topic and to those of the harness. Every
// change must arrive in its topic, and each lane keeps its order.
func testRoutedTopics(t testing.TB, h Harness) {
	if len(h.Topics) == 0 {
		t.Skip("this destination has no other topics")
	}
	f, p := newChangeFactory(), openSink(t, h)
	if _, ok := p.sink.(sinks.Router); !ok {
		t.Fatal("the sink is no Router")
	}
	topics := []*sinks.Template{nil}
	for _, text := range h.Topics {
		topics = append(topics, mustParseTemplate(t, text))
	}
	messages := makeVersions(f, 8, 20)
	for i := range messages {
		messages[i].Topic = topics[(i+i/8)%len(topics)]
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	p.publishTruth(newPublishedTruth(h, f, p, messages), rand.New(rand.NewPCG(seed, 6)))
	checkLaneStability(t, h, f, p)
}

// checkLaneStability fails the test unless all changes of an object for one topic share a lane, and LaneTo with nil is Lane.
func checkLaneStability(t testing.TB, h Harness, f *changeFactory, p publisher) {
	t.Helper()
	for object := range 20 {
		before, now := f.newChange(object, 1), f.newDeleted(object, 2)
		if want, got := p.laneOf(before), p.laneForTopic(now, nil); got != want {
			t.Errorf("%s is in lane %q, an earlier change of the object in %q", now.ID(), got, want)
		}
		for _, text := range h.Topics {
			topic := mustParseTemplate(t, text)
			if want, got := p.laneForTopic(before, topic), p.laneForTopic(now, topic); got != want {
				t.Errorf("%s is in lane %q for topic %s, an earlier change of the object in %q", now.ID(), got, text, want)
			}
		}
	}
}

func mustParseTemplate(t testing.TB, text string) *sinks.Template {
	t.Helper()
	topic, err := sinks.ParseTemplate(text)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// isInWrongTopic reports whether m was found in another topic than it was sent to. A topic of no template is the sink's own.
func (h Harness) isInWrongTopic(t testing.TB, m sinks.Message, topic string) bool {
	names := func(template *sinks.Template) bool {
		return topic == string(template.AppendName(nil, m.Change, h.Escape))
	}
	if m.Topic != nil {
		return !names(m.Topic)
	}
	return slices.ContainsFunc(h.Topics, func(text string) bool { return names(mustParseTemplate(t, text)) })
}
