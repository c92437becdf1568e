package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// State configures the replicated state.
type State struct {
	// Name of the sink, of kafka or nats, that keeps the state in its bus. Empty: the state is in the journal only.
	Sink string `mapstructure:"sink"`
	// Kafka topic or NATS stream of the state, used only by this exporter and its standbys. It also identifies them to the
	// bus: in Kafka their transactional IDs begin with it.
	Name string `mapstructure:"name"`
}

// Enabled reports whether a replicated state is configured.
func (s State) Enabled() bool { return s.Sink != "" }

// Election configures the choice of the active exporter.
type Election struct {
	// The Lease that the exporters compete for, namespace/name. Empty: this exporter is active at once, regardless of
	// others.
	Lease string `mapstructure:"lease"`
	// Another exporter takes over when the active one has not renewed the Lease for so long: whole seconds, at most 24h.
	// The Lease is renewed five times as often.
	Duration time.Duration `mapstructure:"duration"`
	// An active exporter that has not reached the destination of a sink for so long yields the Lease to a standby that
	// reaches that one, too. It stays active while there is no such standby.
	YieldAfter time.Duration `mapstructure:"yieldAfter"`
	// Identity of this exporter in the Lease, different for each. Empty: $POD_NAME, else the host's name and a random word.
	Identity string `mapstructure:"identity"`
}

// Enabled reports whether exporters compete for a Lease.
func (e Election) Enabled() bool { return e.Lease != "" }

// NamespacedName returns the namespace and the name of the Lease.
func (e Election) NamespacedName() (namespace, name string) {
	namespace, name, _ = strings.Cut(e.Lease, "/")
	return namespace, name
}

// maxLease bounds the time in which no exporter is active.
const maxLease = 24 * time.Hour

// validateState checks that the state has a bus and a name that is valid there.
func validateState(rep *reporter, c *Config) {
	if !c.State.Enabled() {
		return
	}
	expected := "the name of a sink of kafka or nats"
	if able := stateSinkNames(c.Sinks); len(able) > 0 {
		expected += ": " + strings.Join(able, ", ")
	}
	p := Problem{Found: strconv.Quote(c.State.Sink), Expected: expected}
	i := slices.IndexFunc(c.Sinks, func(s Sink) bool { return s.Name == c.State.Sink })
	switch {
	case i < 0:
		p.Message = "no sink has this name"
	case !c.Sinks[i].supportsState():
		p.Message = "this sink cannot keep a state"
	default:
		validateStateName(rep, c.State.Name, c.Sinks[i])
		return
	}
	rep.addProblem("state.sink", p)
}

// supportsState reports whether the bus of the sink can keep a state.
func (s Sink) supportsState() bool { return s.Kafka != nil || s.NATS != nil }

// stateSinkNames returns the names of the sinks that can keep a state.
func stateSinkNames(sinks []Sink) (names []string) {
	for _, s := range sinks {
		if s.supportsState() && s.Name != "" {
			names = append(names, s.Name)
		}
	}
	return names
}

// maxStateNameLength leaves space for suffixes within the limits of 249 bytes for a topic and 255 for a stream.
const maxStateNameLength = 200

// validateStateName checks the name of the topic or stream of the state.
func validateStateName(rep *reporter, name string, in Sink) {
	allowed, what := isTopicByte, "a topic: letters, digits, \".\", \"_\" and \"-\""
	isUsed := func() bool { return in.Kafka.Topic == name }
	if in.NATS != nil {
		allowed, what = isStreamByte, "a stream: letters, digits, \"_\" and \"-\""
		isUsed = func() bool { return in.NATS.StreamName() == name }
	}
	p := Problem{Found: strconv.Quote(name), Expected: "the name of " + what}
	switch {
	case name == "":
		p.Message = "is empty"
	case len(name) > maxStateNameLength:
		p.Message = fmt.Sprintf("longer than %d bytes", maxStateNameLength)
	case strings.IndexFunc(name, func(r rune) bool { return r > 127 || !allowed(byte(r)) }) >= 0:
		p.Message = "contains a character that is not allowed"
	case isUsed():
		p.Message, p.Expected = "changes are written there", "a name of its own"
	default:
		return
	}
	rep.addProblem("state.name", p)
}

func isStreamByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-'
}

func isTopicByte(b byte) bool { return isStreamByte(b) || b == '.' }

func validateElection(rep *reporter, c *Config) {
	e := c.Election
	if !e.Enabled() {
		if e.Identity != "" {
			rep.addProblem("election.identity", Problem{Message: "has no effect without election.lease", Found: strconv.Quote(e.Identity)})
		}
		return
	}
	if !c.State.Enabled() {
		rep.addProblem("election.lease", Problem{Message: "needs state.sink: without a replicated state, a new active exporter does not know what was emitted",
			Found: strconv.Quote(e.Lease), Expected: "state.sink, or no election.lease"})
	}
	namespace, name := e.NamespacedName()
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		rep.addProblem("election.lease", Problem{Message: "not the namespace and name of a Lease", Found: strconv.Quote(e.Lease), Expected: `namespace/name, such as "kubecdc/exporter"`})
	}
	if e.Duration < time.Second || e.Duration%time.Second != 0 {
		rep.addProblem("election.duration", Problem{Message: "not whole seconds", Found: e.Duration.String(), Expected: "at least 1s, in whole seconds"})
	}
	if e.Duration > maxLease {
		rep.addProblem("election.duration", Problem{Message: "too long: nothing is emitted until another exporter takes over", Found: e.Duration.String(),
			Expected: "at most " + maxLease.String()})
	}
	if e.YieldAfter < time.Second {
		rep.addProblem("election.yieldAfter", Problem{Message: "too short", Found: e.YieldAfter.String(), Expected: "at least 1s"})
	}
	if strings.ContainsFunc(e.Identity, func(r rune) bool { return r <= ' ' }) {
		rep.addProblem("election.identity", Problem{Message: "contains blanks", Found: strconv.Quote(e.Identity), Expected: "a word, such as the name of the Pod"})
	}
}
