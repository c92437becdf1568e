package nats

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

func TestAStreamThatLosesMessagesIsUsedWithAWarning(t *testing.T) {
	for name, test := range map[string]struct {
		stream  jetstream.StreamConfig
		warning string
	}{
		"interest":     {jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, "retention: interest"},
		"work queue":   {jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, "retention: workqueue"},
		"little room":  {jetstream.StreamConfig{Discard: jetstream.DiscardOld, MaxMsgs: 100}, "is small, max_bytes"},
		"little time":  {jetstream.StreamConfig{MaxAge: time.Minute, Duplicates: time.Minute}, "drops changes after 1m0s"},
		"few versions": {jetstream.StreamConfig{MaxMsgsPerSubject: 3, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true}, "discard_new_per_subject"},
		"the newest":   {jetstream.StreamConfig{MaxMsgsPerSubject: 1}, ""},
		"enough":       {jetstream.StreamConfig{Discard: jetstream.DiscardOld, MaxBytes: smallStreamBytes}, ""},
		"refuses more": {jetstream.StreamConfig{Discard: jetstream.DiscardNew, MaxMsgs: 100}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, "")
			test.stream.Name, test.stream.Subjects, test.stream.AllowBatchPublish = "K8S", []string{"k8s.>"}, true
			createStream(t, connectClient(t, server.URL()), test.stream)
			var lines logs.Buffer
			s := openSink(t, testConfig(server.URL()), lines.Logger())
			mustPublish(t, s, newPod("web", 1))
			mustPublish(t, s, newPod("web", 2))
			s.features.invalidate() // as after an outage
			mustPublish(t, s, newPod("web", 3))
			warnings, logged := strings.Join(warningsOf(s), "\n"), strings.Count(lines.String(), "code=SinkMayLose")
			if test.warning == "" && (warnings != "" || logged != 0) {
				t.Errorf("logged %d times: %s", logged, warnings)
			}
			if test.warning != "" && (!strings.Contains(warnings, test.warning) || logged != 1) {
				t.Errorf("logged %d times: %s; want %q once", logged, warnings, test.warning)
			}
		})
	}
}

func TestObjectsThatShareASubjectOfWhichAStreamKeepsTheNewestAreReported(t *testing.T) {
	server := startServer(t, "")
	createStream(t, connectClient(t, server.URL()), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, MaxMsgsPerSubject: 1})
	cfg := testConfig(server.URL())
	cfg.Subject = "k8s.{cluster}.{resource}.{namespace}"
	s := openSink(t, cfg, discardLog)
	mustPublish(t, s, newPod("web", 1))
	if all := strings.Join(warningsOf(s), "\n"); !strings.Contains(all, "several objects share one") {
		t.Errorf("got %q", all)
	}
}

func TestAFullStreamThatDropsYoungChangesIsReported(t *testing.T) {
	found := &stream.Info{Config: jetstream.StreamConfig{Name: "K8S", Discard: jetstream.DiscardOld, MaxBytes: 1 << 30}}
	found.State.Bytes, found.State.FirstTime = 1<<30, time.Now().Add(-10*time.Minute)
	if got := lossWarning(found); !strings.Contains(got, "drops changes that are 10m0s old") {
		t.Errorf("got %q", got)
	}
	found.State.FirstTime = time.Now().Add(-25 * time.Hour)
	if got := lossWarning(found); got != "" {
		t.Errorf("got %q", got)
	}
}
