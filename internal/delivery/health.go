package delivery

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// What a sink can be in, decided from all of its lanes. Of lanes in trouble the log tells one by one, or in one line for
// those with the same reason.
var (
	connecting = condition.State{Name: "connecting", Severity: condition.NotReady}
	delivering = condition.State{Name: "delivering", Message: "sink delivers"}
	impaired   = condition.State{Name: "impaired", Severity: condition.Degraded}
	away       = condition.State{
		Name: "away", Severity: condition.NotReady, Level: slog.LevelWarn,
		Message: "sink takes no changes: all its lanes wait, changes stay in the journal",
	}
	unstored = condition.State{
		Name: "unstored", Severity: condition.NotReady, Level: slog.LevelError,
		Message: "progress cannot be stored; delivery goes on and is repeated from the stored position after a restart",
	}

	laneWorks = condition.State{Name: "working", Message: "lanes deliver again"}
	laneFails = condition.State{
		Name: "failing", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "a lane fails and is tried again with back-off; other lanes go on",
	}
)

// moment is for how long no lane may work before the sink is not ready.
const moment = 2 * time.Second

// maxTold bounds the lanes in trouble that are told one by one; the others are counted.
const maxTold = 100

// LaneTrouble is what is known of a lane that fails.
type LaneTrouble struct {
	Lane   string
	Reason string // cause and remedy, one line
	Since  time.Time
}

// health decides how the sink is doing. Safe for concurrent use.
type health struct {
	sink  *condition.Condition
	lanes *condition.Set

	mu               sync.Mutex
	failing          map[sinks.Lane]*condition.Condition // maxTold at most
	well, wellBefore []sinks.Lane                        // that failed: since the last prune, and before it
	pinged           bool                                // the destination was reached, or nobody can ask
	unheard          string                              // why the last ping failed
	asked            time.Time                           // when that was begun
	settle           string                              // why progress is not stored

}

// newHealth returns the health of a sink that nobody has heard of yet; canAsk says that somebody will ask.
func newHealth(log *slog.Logger, canAsk bool) *health {
	initial := delivering
	if canAsk {
		initial = connecting
	}
	return &health{
		sink: condition.New(log, initial), lanes: condition.NewSet(log, "lanes"),
		failing: map[sinks.Lane]*condition.Condition{}, pinged: !canAsk,
	}
}

// close ends what waits to be logged.
func (h *health) close() {
	h.lanes.Close()
	h.sink.Close()
}

// laneFails notes that a lane goes into back-off.
func (h *health) laneFails(name sinks.Lane, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.failing[name]
	if c == nil {
		if len(h.failing) == maxTold {
			return
		}
		c = h.lanes.Add(laneLabel(name), laneWorks)
		h.failing[name] = c
	}
	c.Become(laneFails, err.Error(), "")
}

// laneWorks notes that a lane left its back-off, or is no more.
func (h *health) laneWorks(name sinks.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.failing[name]; c != nil {
		c.Become(laneWorks, "", "")
		delete(h.failing, name)
		h.well = append(h.well, name)
	}
}

// prune forgets lanes that have worked again for a while; it is called every now and then.
func (h *health) prune() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.wellBefore {
		if h.failing[name] == nil {
			h.lanes.Remove(laneLabel(name))
		}
	}
	h.wellBefore, h.well = h.well, nil
}

// laneLabel is the name of a lane for people.
func laneLabel(name sinks.Lane) string {
	if name == unroutable {
		return "dead letters"
	}
	return string(name)
}

// heard notes what came of a ping.
func (h *health) heard(began time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked, h.unheard = began, ""
	if err != nil {
		h.unheard = err.Error()
		if gone := new(sinks.UnavailableError); errors.As(err, &gone) {
			h.unheard = gone.Reason
		}
		return
	}
	h.pinged = true
}

// settled notes how storing the cursor went.
func (h *health) settled(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settle = ""
	if err != nil {
		h.settle = err.Error()
	}
}

// decide is the one place that says how the sink is doing. It is called regularly, from one goroutine.
func (h *health) decide(s Stats, gate ratelimit.GateStatus) {
	state, reason := h.verdict(s, gate)
	h.sink.Become(state, reason, "")
}

func (h *health) verdict(s Stats, gate ratelimit.GateStatus) (state condition.State, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.settle != "":
		return unstored, h.settle
	case gate.State != ratelimit.Open:
		return away, gate.Reason
	case h.unheard != "" && !s.LastAck.After(h.asked):
		return away, h.unheard
	case s.LanesFailing > 0 && s.LanesWorking == 0 && h.lasts():
		return away, "no lane works: " + h.summary(s.LanesFailing)
	case s.LanesFailing > 0:
		return impaired, h.summary(s.LanesFailing)
	case h.pinged || !s.LastAck.IsZero():
		return delivering, ""
	}
	return connecting, "not reached yet"
}

// lasts reports whether some trouble is more than a moment: a topic that was just created has no leader yet. The caller
// holds h.mu.
func (h *health) lasts() bool {
	for _, c := range h.failing {
		if time.Since(c.Status().Since) >= moment {
			return true
		}
	}
	return false
}

// summary is the lanes in trouble in one line. The caller holds h.mu.
func (h *health) summary(count int) string {
	first := h.trouble()
	if len(first) == 0 {
		return fmt.Sprintf("%d lanes fail", count)
	}
	text := fmt.Sprintf("lane %s: %s", first[0].Lane, first[0].Reason)
	if count > 1 {
		text += fmt.Sprintf(" (and %d more)", count-1)
	}
	return text
}

// trouble returns the lanes in trouble, those first that have it for longest. The caller holds h.mu.
func (h *health) trouble() []LaneTrouble {
	var all []LaneTrouble
	for name, c := range h.failing {
		s := c.Status()
		all = append(all, LaneTrouble{Lane: laneLabel(name), Reason: s.Explanation(), Since: s.Since})
	}
	slices.SortFunc(all, func(a, b LaneTrouble) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Lane, b.Lane))
	})
	return all
}

// describe fills in what health knows.
func (h *health) describe(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Condition = h.sink.Status()
	s.Trouble = h.trouble()
}
