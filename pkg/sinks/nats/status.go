package nats

import (
	"log/slog"
	"sync"
)

// Status tells whether the sink can deliver.
type Status struct {
	Ready  bool
	Reason string // why not, for people; empty when ready
}

// health joins what is known about the connection with what the stream answers, and logs each change once.
type health struct {
	log *slog.Logger

	mu        sync.Mutex
	connected bool
	away      string          // why there is no connection
	culprit   *waiter         // whose message was refused, nil for nobody's
	fault     string          // why
	told      map[string]bool // reasons logged since the trouble began
}

// maxTold bounds the reasons that are logged of one outage.
const maxTold = 16

// news says whether a reason is still to be logged in this outage. mu is held.
func (h *health) news(reason string) bool {
	if h.told[reason] || len(h.told) == maxTold {
		return false
	}
	if h.told == nil {
		h.told = make(map[string]bool)
	}
	h.told[reason] = true
	return true
}

func (h *health) status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.connected:
		return Status{Reason: h.away}
	case h.culprit != nil:
		return Status{Reason: h.fault}
	}
	return Status{Ready: true}
}

// up notes that the connection stands.
func (h *health) up(server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.connected {
		return
	}
	h.connected, h.away, h.told = true, "", nil
	h.log.Info("NATS connected", "server", server)
}

// down notes that there is no connection and why. Each reason is logged once in an outage.
func (h *health) down(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.connected {
		h.told = nil
	}
	h.connected, h.away = false, reason
	if h.news(reason) {
		h.log.Warn("NATS not connected; reconnecting without a limit", "reason", reason)
	}
}

// fail notes that w got no acknowledgement. One fault is told at a time, until the waiter that has it succeeds: with
// many lanes in the same trouble there would be no end of lines.
func (h *health) fail(w *waiter, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.connected || h.culprit != nil && h.culprit != w {
		return
	}
	h.culprit, h.fault = w, err.Error()
	w.faulty.Store(true)
	if h.news(h.fault) {
		h.log.Warn("NATS does not accept changes; they are sent again until it does", "error", err)
	}
}

// succeed notes that w got its acknowledgement. It costs nothing while w had no fault.
func (h *health) succeed(w *waiter) {
	if !w.faulty.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w.faulty.Store(false)
	h.culprit, h.fault, h.told = nil, "", nil
	h.log.Info("NATS accepts changes again")
}
