package nats

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Topics of warnings; the newest warning of a topic replaces the one before.
const (
	topicRetention  = "forgets"
	topicSubjects   = "subjects"
	topicVersions   = "versions"
	topicDuplicates = "duplicates"
	topicWriters    = "writers"
	topicFence      = "fence"
)

// warnings are the ways in which the stream may lose changes or is used with weaker guarantees. They are safe for concurrent
// use.
type warnings struct {
	log *slog.Logger

	mu     sync.Mutex
	topics map[string]*condition.Condition
}

// setWarning sets the warning of a topic; "" removes it.
func (w *warnings) setWarning(topic, text string) {
	p := condition.Problem{}
	if text != "" {
		p = condition.Problem{Code: condition.SinkMayLose, Cause: text}
	}
	w.topic(topic).Update(p)
}

func (w *warnings) topic(name string) *condition.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.topics[name] == nil {
		w.topics[name] = condition.New(w.log, "", condition.Problem{})
	}
	return w.topics[name]
}

// conditions returns the status of each topic.
func (w *warnings) conditions() (all []condition.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(w.topics)) {
		all = append(all, w.topics[name].Status())
	}
	return all
}
