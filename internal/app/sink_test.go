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
				cfg, err := config.Load(write(t, "config.yaml",
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
