package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/sinks/stdout"
	"github.com/kubecdc/kubecdc/pkg/sinks/webhook"
)

// configuredSink is a sink as the configuration describes it, and what its kind tells of it.
type configuredSink struct {
	sink sinks.Sink
	name string
	kind string // as the status page shows it
	// layout names what the names of lanes depend on besides what they already say: with another layout the stored positions
	// of lanes mean nothing.
	layout string
}

// newSink makes the configured sink. It contacts nothing.
func newSink(s config.Sink, log *slog.Logger) (*configuredSink, error) {
	f, err := format.Parse(s.Format)
	if err != nil {
		return nil, err
	}
	switch {
	case s.Kafka != nil:
		return newKafkaSink(s, f, log)
	case s.NATS != nil:
		return newNATSSink(s, f, log)
	case s.Webhook != nil:
		sink, err := webhook.New(*s.Webhook, f)
		if err != nil {
			return nil, err
		}
		return &configuredSink{sink: sink, name: s.Name, kind: "webhook", layout: "webhook " + strconv.Quote(s.Webhook.Origin())}, nil
	default:
		sink, err := stdout.New(*s.Stdout, f)
		if err != nil {
			return nil, err
		}
		return &configuredSink{sink: sink, name: s.Name, kind: "stdout", layout: "stdout " + strconv.Quote(s.Stdout.Path)}, nil
	}
}

func newKafkaSink(s config.Sink, f format.Format, log *slog.Logger) (*configuredSink, error) {
	sink, err := kafka.New(*s.Kafka, f, log)
	if err != nil {
		return nil, err
	}
	return &configuredSink{sink: sink, name: s.Name, kind: "kafka", layout: "kafka " + strconv.Quote(s.Kafka.Topic)}, nil
}

func newNATSSink(s config.Sink, f format.Format, log *slog.Logger) (*configuredSink, error) {
	sink, err := nats.New(*s.NATS, f, log)
	if err != nil {
		return nil, err
	}
	kind := "nats"
	if s.NATS.KeepsNothing() {
		kind = "nats core, which keeps nothing"
	}
	return &configuredSink{sink: sink, name: s.Name, kind: kind, layout: "nats " + strconv.Quote(s.NATS.StreamName())}, nil
}

// sinkConfigByName returns the configuration of the sink with a name.
func sinkConfigByName(cfg *config.Config, name string) (config.Sink, error) {
	for _, s := range cfg.Sinks {
		if s.Name == name {
			return s, nil
		}
	}
	return config.Sink{}, exit.With(exit.Usage, fmt.Errorf("no sink %q is configured", name))
}

// restoreWithoutState makes a sink ready that keeps no state with a journal.
func restoreWithoutState(s sinks.Sink) error {
	stateful, ok := s.(sinks.Stateful)
	if !ok {
		return nil
	}
	return stateful.RestoreState(nil, 0, func(context.Context) error { return nil })
}

// recordSemanticsVersion is part of what a sink's state depends on. Raise it when this program gives lanes other changes than the one
// before, or in another order, or makes another number of records of one: a state counts by these.
const recordSemanticsVersion = "1"

// deliveryFingerprint names what decides which changes a sink gets, in which order and form, and where: what is stored under another
// one means nothing. Fields that it does not know count.
func deliveryFingerprint(s config.Sink) string {
	s.Stdout = nil // it keeps no state
	s.DeadLetters, s.OnOversize = config.DeadLetters{}, ""
	if s.NATS != nil { // its state speaks of a stream, and of nothing else
		s.NATS = &nats.Config{Stream: s.NATS.StreamName()}
	}
	if s.Kafka != nil {
		k := *s.Kafka
		k.TLS, k.SASL, k.ClientID, k.RequestTimeout = auth.TLS{}, auth.SASL{}, "", 0
		k.CreateTopics, k.CheckTopics = kafka.CreateTopics{}, "" // how many partitions a topic has is in the names of lanes
		k.Compression, k.BatchBytes = "", 0                      // records are counted, and not batches
		s.Kafka = &k
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("the configuration of a sink is plain data: %v", err))
	}
	return recordSemanticsVersion + " " + string(b)
}
