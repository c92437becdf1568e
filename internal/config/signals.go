package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
)

// Signals configures the buses over which signals are taken. Every client that may publish there may send
// them.
type Signals struct {
	// Requests on a subject of core NATS, each answered when its signal is stored.
	NATS SignalsNATS `mapstructure:"nats"`
	// Records of a Kafka topic, each taken once. Their answers are in "exporter signal list".
	Kafka SignalsKafka `mapstructure:"kafka"`
}

// SignalsNATS configures signals over NATS.
type SignalsNATS struct {
	// Name of a sink of nats: its url, credentials and tls apply to a connection of its own. Empty: no signals over NATS.
	Sink string `mapstructure:"sink"`
	// Subject of the requests, without wildcards, for this deployment alone. No stream may capture it.
	Subject string `mapstructure:"subject"`
}

// SignalsKafka configures signals over Kafka.
type SignalsKafka struct {
	// Name of a sink of kafka: its brokers, clientID, requestTimeout, tls and sasl apply to connections of their own. Empty: no
	// signals over Kafka.
	Sink string `mapstructure:"sink"`
	// Topic of the signals, for this deployment alone. It has to exist. What is in it before the first start is not taken.
	Topic string `mapstructure:"topic"`
}

func validateSignals(rep *reporter, c *Config) {
	validateSignalsNATS(rep, c)
	validateSignalsKafka(rep, c)
}

func validateSignalsKafka(rep *reporter, c *Config) {
	k := c.Signals.Kafka
	isKafka := func(s Sink) bool { return s.Kafka != nil }
	sink, usable := validateSignalSink(rep, c, "signals.kafka", k.Sink, k.Topic, "kafka", isKafka)
	if !usable {
		return
	}
	p := Problem{Found: strconv.Quote(k.Topic), Expected: "the name of a topic of its own, such as kubecdc.signals"}
	used := append(topicsOfChanges(c, k.Sink), sink.Kafka.Topic)
	if c.State.Enabled() {
		used = append(used, c.State.Name)
	}
	switch err := kafka.CheckTopicName(k.Topic); {
	case err != nil:
		p.Message = err.Error()
	case slices.Contains(used, k.Topic):
		p.Message = "the exporter writes there"
	default:
		return
	}
	rep.addProblem("signals.kafka.topic", p)
}

// topicsOfChanges returns the templates of topics or subjects to which changes and dead letters are written at a sink,
// besides its own.
func topicsOfChanges(c *Config, sink string) (templates []string) {
	for _, to := range c.Routes {
		for _, target := range to.To {
			if target.Sink == sink && target.Topic != "" {
				templates = append(templates, target.Topic)
			}
		}
	}
	for _, s := range c.Sinks {
		if s.DeadLetters.Sink == sink {
			templates = append(templates, s.DeadLetters.Topic)
		}
	}
	return templates
}

func validateSignalsNATS(rep *reporter, c *Config) {
	n := c.Signals.NATS
	isNATS := func(s Sink) bool { return s.NATS != nil }
	sink, usable := validateSignalSink(rep, c, "signals.nats", n.Sink, n.Subject, "nats", isNATS)
	if !usable {
		return
	}
	bus := *sink.NATS
	bus.Routed = topicsOfChanges(c, n.Sink)
	if err := bus.ValidateRequestSubject(n.Subject); err != nil {
		rep.addProblem("signals.nats.subject", Problem{Message: err.Error(), Found: strconv.Quote(n.Subject),
			Expected: "a subject of its own without wildcards, such as kubecdc.signals"})
	}
}

// validateSignalSink checks the name of the sink whose connection signals are received with. usable is false if there is
// none; to is where they are sent.
func validateSignalSink(
	rep *reporter, c *Config, at, name, to, kind string, isOfKind func(Sink) bool,
) (sink Sink, usable bool) {
	if name == "" && to == "" {
		return sink, false
	}
	var able []string
	for _, s := range c.Sinks {
		if isOfKind(s) && s.Name != "" {
			able = append(able, s.Name)
		}
	}
	p := Problem{Found: strconv.Quote(name), Expected: "the name of a sink of " + kind}
	if len(able) > 0 {
		p.Expected += ": " + strings.Join(able, ", ")
	}
	sink, found := c.FindSink(name)
	switch {
	case name == "":
		p.Message = "is missing: its connection is needed"
	case !found:
		p.Message = "no sink has this name"
	case !isOfKind(sink):
		p.Message = "this sink is of another kind"
	default:
		return sink, true
	}
	rep.addProblem(at+".sink", p)
	return sink, false
}
