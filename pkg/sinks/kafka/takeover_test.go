package kafka

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/sinktest"
)

// takeOverHarness describes processes of one group that write to topics of a prefix in a format.
func takeOverHarness(brokers []string, prefix string, f format.Format, adapt func(*Config)) sinktest.Harness {
	cfg := Config{
		Brokers: brokers, Topic: prefix + "{resource}", BatchBytes: minBatchBytes,
		CreateTopics: CreateTopics{Enabled: true, Partitions: 3},
	}
	adapt(&cfg)
	return sinktest.Harness{
		New: func(t testing.TB) sinks.Sink {
			t.Helper()
			s, err := New(cfg, f, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Read: func(t testing.TB) []sinktest.Delivered {
			return deliveredIn(t, readAll(t, brokers, prefix), cfg.Tombstones)
		},
		Key:        (*event.Change).Key,
		Value:      func(c *event.Change) []byte { return f.AppendValue(nil, c) },
		ExactRetry: true, ExactRestart: true, Tombstones: cfg.Tombstones,
	}
}

func TestTakeOversOnApacheKafka(t *testing.T) {
	b := apache(t)
	for name, adapt := range map[string]func(*Config){
		"zstd": func(*Config) {}, "lz4": func(c *Config) { c.Compression = "lz4" }, "snappy": func(c *Config) { c.Compression = "snappy" },
		"gzip": func(c *Config) { c.Compression = "gzip" }, "none": func(c *Config) { c.Compression = "none" },
	} {
		t.Run(name, func(t *testing.T) {
			sinktest.RunTakeOver(t, takeOverHarness(b.Brokers(), "k8s."+name+".", format.JSON, adapt))
		})
	}
	for _, f := range []format.Format{format.CloudEvents, format.CloudEventsStructured, format.Upsert, format.Debezium} {
		t.Run(f.String(), func(t *testing.T) {
			adapt := func(c *Config) { c.Tombstones = f == format.Debezium }
			sinktest.RunTakeOver(t, takeOverHarness(b.Brokers(), "k8s."+f.String()+".", f, adapt))
		})
	}
}

// deliveredIn reads records of any format.
func deliveredIn(t testing.TB, records []*kgo.Record, tombstones bool) (all []sinktest.Delivered) {
	for _, r := range records {
		d := sinktest.Delivered{ID: header(r, "id") + header(r, "ce_id"), Key: string(r.Key), Value: r.Value, Topic: r.Topic}
		var structured struct{ ID string }
		if d.ID == "" {
			if err := json.Unmarshal(r.Value, &structured); err != nil {
				t.Error(err)
			}
			d.ID = structured.ID
		}
		if tombstones && r.Value == nil && header(r, "type") == string(event.Deleted) {
			d.ID, d.Tombstone = "", true
		}
		all = append(all, d)
	}
	return all
}
