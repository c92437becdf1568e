package nats

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
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

// warnings are the ways in which the stream may lose changes or is used with weaker guarantees, see [sinks.Warner]. They
// are safe for concurrent use.
type warnings struct {
	log    *slog.Logger
	stream string

	mu    sync.Mutex
	texts map[string]string // by topic; "" for none
}

// setWarning sets the warning of a topic and logs it if it is new; "" removes it.
func (w *warnings) setWarning(topic, text string) {
	w.mu.Lock()
	known := w.texts[topic] == text
	w.texts[topic] = text
	w.mu.Unlock()
	if !known && text != "" {
		w.log.Warn("NATS stream may lose or repeat changes", "stream", w.stream, "reason", text)
	}
}

// warningOn returns the warning of a topic; "" if there is none.
func (w *warnings) warningOn(topic string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.texts[topic]
}

// activeWarnings returns all warnings in the order of their topics.
func (w *warnings) activeWarnings() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, topic := range slices.Sorted(maps.Keys(w.texts)) {
		if text := w.texts[topic]; text != "" {
			all = append(all, text)
		}
	}
	return all
}
