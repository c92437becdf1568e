package nats

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

func TestAStreamThatForgetsIsReportedAndUsed(t *testing.T) {
	for name, test := range map[string]struct {
		stream jetstream.StreamConfig
		says   string
	}{
		"interest":     {jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, "retention: interest"},
		"work queue":   {jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, "retention: workqueue"},
		"little room":  {jetstream.StreamConfig{Discard: jetstream.DiscardOld, MaxMsgs: 100}, "has little room"},
		"little time":  {jetstream.StreamConfig{MaxAge: time.Minute, Duplicates: time.Minute}, "drops changes after 1m0s"},
		"few versions": {jetstream.StreamConfig{MaxMsgsPerSubject: 3, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true}, "discard_new_per_subject"},
		"the newest":   {jetstream.StreamConfig{MaxMsgsPerSubject: 1}, ""},
		"enough":       {jetstream.StreamConfig{Discard: jetstream.DiscardOld, MaxBytes: littleBytes}, ""},
		"refuses more": {jetstream.StreamConfig{Discard: jetstream.DiscardNew, MaxMsgs: 100}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, "")
			test.stream.Name, test.stream.Subjects, test.stream.AllowBatchPublish = "K8S", []string{"k8s.>"}, true
			createStream(t, client(t, server.URL()), test.stream)
			var lines transcript
			s := opened(t, configFor(server.URL()), lines.logger())
			accepted(t, s, pod("web", 1))
			accepted(t, s, pod("web", 2))
			s.verified.Store(false) // as after an outage
			accepted(t, s, pod("web", 3))
			cautions, said := strings.Join(s.Cautions(), "\n"), strings.Count(lines.String(), "is not as it should be")
			if test.says == "" && (cautions != "" || said != 0) {
				t.Errorf("said %d times: %s", said, cautions)
			}
			if test.says != "" && (!strings.Contains(cautions, test.says) || said != 1) {
				t.Errorf("said %d times: %s; want %q once", said, cautions, test.says)
			}
		})
	}
}

func TestObjectsThatShareASubjectOfWhichAStreamKeepsTheNewestAreReported(t *testing.T) {
	server := serve(t, "")
	createStream(t, client(t, server.URL()), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, MaxMsgsPerSubject: 1})
	cfg := configFor(server.URL())
	cfg.Subject = "k8s.{cluster}.{resource}.{namespace}"
	s := opened(t, cfg, quiet)
	accepted(t, s, pod("web", 1))
	if all := strings.Join(s.Cautions(), "\n"); !strings.Contains(all, "several objects share one") {
		t.Errorf("got %q", all)
	}
}

func TestAFullStreamThatDropsWhatIsYoungIsReported(t *testing.T) {
	found := &stream.Info{Config: jetstream.StreamConfig{Name: "K8S", Discard: jetstream.DiscardOld, MaxBytes: 1 << 30}}
	found.State.Bytes, found.State.FirstTime = 1<<30, time.Now().Add(-10*time.Minute)
	if got := forgets(found); !strings.Contains(got, "drops changes that are 10m0s old") {
		t.Errorf("got %q", got)
	}
	found.State.FirstTime = time.Now().Add(-25 * time.Hour)
	if got := forgets(found); got != "" {
		t.Errorf("got %q", got)
	}
}
