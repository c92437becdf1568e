package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

// TestEveryFormatThatTheConfigurationAllowsIsWritten holds two lists together: the configuration's and package format's.
func TestEveryFormatThatTheConfigurationAllowsIsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "changes.jsonl")
	for destination, formats := range map[string][]string{
		`kafka: {brokers: ["127.0.0.1:9092"], topic: k8s}`:                  {"json", "cloudevents", "cloudevents-structured"},
		`nats: {url: "nats://127.0.0.1:4222", stream: K8S, subject: k8s.a}`: {"json", "cloudevents", "cloudevents-structured"},
		`stdout: {path: "` + file + `"}`:                                    {"json", "cloudevents-structured"},
	} {
		for _, format := range formats {
			t.Run(format+" "+destination[:5], func(t *testing.T) {
				cfg, err := config.Load(writeTemp(t, "config.yaml",
					"resources: [{select: [pods]}]\nsinks: [{name: a, format: "+format+", "+destination+"}]\n"))
				if err != nil {
					t.Fatal(err)
				}
				s, err := newSink(cfg.Sinks[0], slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				if err := s.sink.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestFingerprintIgnoresTransportSettings: what a sink remembers across a crash holds under another
// timeout or another password, and not where changes go elsewhere, or make other records.
func TestFingerprintIgnoresTransportSettings(t *testing.T) {
	load := func(sink string) string {
		cfg, err := config.Load(writeTemp(t, "config.yaml", "resources: [{select: [pods]}]\nsinks: [{name: a, "+sink+"}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		return deliveryFingerprint(cfg.Sinks[0])
	}
	const (
		kafkaSink = `kafka: {brokers: ["b:9092"], topic: "k8s.{resource}"`
		natsSink  = `nats: {url: "nats://b:4222", stream: K8S, subject: k8s.a`
	)
	for was, same := range map[string][]string{
		kafkaSink + "}": {
			kafkaSink + `, requestTimeout: 20s}`, kafkaSink + `, compression: none, batchBytes: 500000}`, kafkaSink + `, clientID: other}`,
			kafkaSink + `, createTopics: {enabled: true, partitions: 12}}`, kafkaSink + `}, onOversize: deadLetter`,
			kafkaSink + `, tls: {enabled: true}}`,
		},
		natsSink + "}": {natsSink + `, ackTimeout: 20s}`, `nats: {url: "nats://c:4222", stream: K8S, subject: k8s.a}`},
	} {
		for _, now := range same {
			if load(was) != load(now) {
				t.Errorf("%s is not what %s was", now, was)
			}
		}
	}
	for was, others := range map[string][]string{
		kafkaSink + "}": {
			`kafka: {brokers: ["c:9092"], topic: "k8s.{resource}"}`, `kafka: {brokers: ["b:9092"], topic: "k8s.{kind}"}`,
			kafkaSink + `, idempotence: false}`, kafkaSink + `}, format: cloudevents`,
		},
		kafkaSink + "}, format: debezium": {kafkaSink + ", tombstones: true}, format: debezium"},
		natsSink + "}":                    {`nats: {url: "nats://b:4222", stream: OTHER, subject: k8s.a}`, natsSink + "}, format: cloudevents"},
	} {
		for _, now := range others {
			if load(was) == load(now) {
				t.Errorf("%s is taken for %s", now, was)
			}
		}
	}
}
