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

// configuredSink is a sink made from its configuration.
type configuredSink struct {
	sink sinks.Sink
	name string
	kind string // as the status page shows it
	// layout identifies the settings that the names of lanes depend on and do not contain. Stored positions of lanes are
	// valid for one layout only.
	layout string
}

// newSink makes the configured sink. It opens no connection.
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
	return &configuredSink{sink: sink, name: s.Name, kind: "nats", layout: "nats " + strconv.Quote(s.NATS.StreamName())}, nil
}

// sinkConfigByName returns the configuration of a sink. The error has the code of wrong usage.
func sinkConfigByName(cfg *config.Config, name string) (config.Sink, error) {
	for _, s := range cfg.Sinks {
		if s.Name == name {
			return s, nil
		}
	}
	return config.Sink{}, exit.With(exit.Usage, fmt.Errorf("no sink %q is configured", name))
}

// restoreWithoutState prepares a stateful sink that starts without a stored state.
func restoreWithoutState(s sinks.Sink) error {
	stateful, ok := s.(sinks.Stateful)
	if !ok {
		return nil
	}
	return stateful.RestoreState(nil, 0, func(context.Context) error { return nil })
}

// recordSemanticsVersion is part of deliveryFingerprint. Raise it when a new version of the program sends other changes to a
// lane, or in another order, or makes another number of records of a change: the state of a sink counts records.
const recordSemanticsVersion = "1"

// deliveryFingerprint identifies the settings that determine which changes a sink gets, in which order and format, and
// where. A state that was stored under another fingerprint is invalid. New fields of the configuration are part of it unless
// they are removed here.
func deliveryFingerprint(s config.Sink) string {
	s.Stdout = nil // not stateful
	s.DeadLetters, s.OnOversize = config.DeadLetters{}, ""
	if s.Start != config.StartNow { // otherwise it skips first lists
		s.Start = ""
	}
	s.Watermarks = 0   // each names its sinks, whatever the configuration is by now
	if s.NATS != nil { // its state depends on the stream only
		s.NATS = &nats.Config{Stream: s.NATS.StreamName()}
	}
	if s.Webhook != nil { // it is stored, and the rest of the URL and headers may hold secrets
		s.Webhook = &webhook.Config{URL: s.Webhook.Origin()}
	}
	if s.Kafka != nil {
		k := *s.Kafka
		k.TLS, k.SASL, k.ClientID, k.RequestTimeout = auth.TLS{}, auth.SASL{}, "", 0
		k.Repair = false                                         // deletes behind snapshots are changes like others
		k.CreateTopics, k.CheckTopics = kafka.CreateTopics{}, "" // the number of partitions is in the names of lanes
		k.Compression, k.BatchBytes = "", 0                      // records are counted, not batches
		s.Kafka = &k
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("the configuration of a sink is plain data: %v", err))
	}
	return recordSemanticsVersion + " " + string(b)
}
