package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// validateState checks that the state has a bus, and a name that the bus can take.
func (d *decoder) validateState(c *Config) {
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
		p.Message = "this sink has no bus that keeps a state"
	default:
		d.validateStateName(c.State.Name, c.Sinks[i])
		return
	}
	d.addProblem("state.sink", p)
}

// supportsState says whether the bus of a sink can keep a state.
func (s Sink) supportsState() bool { return s.Kafka != nil || s.NATS != nil }

// stateSinkNames are the names of the sinks whose bus can.
func stateSinkNames(sinks []Sink) (names []string) {
	for _, s := range sinks {
		if s.supportsState() && s.Name != "" {
			names = append(names, s.Name)
		}
	}
	return names
}

// maxStateNameLength leaves room for what is appended to it, in the 249 bytes of a topic and the 255 of a stream.
const maxStateNameLength = 200

// validateStateName checks the name of a topic, or of a stream.
func (d *decoder) validateStateName(name string, in Sink) {
	allowed, what := isTopicByte, "a topic: letters, digits, \".\", \"_\" and \"-\""
	taken := func() bool { return in.Kafka.Topic == name }
	if in.NATS != nil {
		allowed, what = isStreamByte, "a stream: letters, digits, \"_\" and \"-\""
		taken = func() bool { return in.NATS.StreamName() == name }
	}
	p := Problem{Found: strconv.Quote(name), Expected: "the name of " + what}
	switch {
	case name == "":
		p.Message = "is empty"
	case len(name) > maxStateNameLength:
		p.Message = fmt.Sprintf("longer than %d bytes", maxStateNameLength)
	case strings.IndexFunc(name, func(r rune) bool { return r > 127 || !allowed(byte(r)) }) >= 0:
		p.Message = "holds what a name cannot"
	case taken():
		p.Message, p.Expected = "changes go there", "a name of its own"
	default:
		return
	}
	d.addProblem("state.name", p)
}

func isStreamByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-'
}

func isTopicByte(b byte) bool { return isStreamByte(b) || b == '.' }

func (d *decoder) validateElection(c *Config) {
	e := c.Election
	if !e.Enabled() {
		if e.Identity != "" {
			d.addProblem("election.identity", Problem{Message: "means nothing without election.lease", Found: strconv.Quote(e.Identity)})
		}
		return
	}
	if !c.State.Enabled() {
		d.addProblem("election.lease", Problem{Message: "needs state.sink: without a replicated state one that takes over knows nothing of what was emitted",
			Found: strconv.Quote(e.Lease), Expected: "state.sink, or no election.lease"})
	}
	namespace, name := e.NamespacedName()
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		d.addProblem("election.lease", Problem{Message: "not the place of a Lease", Found: strconv.Quote(e.Lease), Expected: `namespace/name, such as "kubecdc/exporter"`})
	}
	if e.Duration < time.Second || e.Duration%time.Second != 0 {
		d.addProblem("election.duration", Problem{Message: "not whole seconds", Found: e.Duration.String(), Expected: "at least 1s, in whole seconds"})
	}
	if strings.ContainsFunc(e.Identity, func(r rune) bool { return r <= ' ' }) {
		d.addProblem("election.identity", Problem{Message: "holds blanks", Found: strconv.Quote(e.Identity), Expected: "a word, such as the name of the Pod"})
	}
}
