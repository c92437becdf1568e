package nats

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

func TestAStreamThatLosesMessagesIsWarnedOf(t *testing.T) {
	for name, test := range map[string]struct {
		stream  jetstream.StreamConfig
		warning string
	}{
		"interest":     {jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, "retention: interest"},
		"work queue":   {jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, "retention: workqueue"},
		"little room":  {jetstream.StreamConfig{Discard: jetstream.DiscardOld, MaxMsgs: 100}, "is small, max_bytes"},
		"little time":  {jetstream.StreamConfig{MaxAge: time.Minute, Duplicates: time.Minute}, "drops changes after 1m0s"},
		"time enough":  {jetstream.StreamConfig{MaxAge: time.Hour}, ""},
		"few versions": {jetstream.StreamConfig{MaxMsgsPerSubject: 3, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true}, "discard_new_per_subject"},
		"the newest":   {jetstream.StreamConfig{MaxMsgsPerSubject: 1}, ""},
		"enough":       {jetstream.StreamConfig{Discard: jetstream.DiscardOld, MaxBytes: smallStreamBytes}, ""},
		"refuses more": {jetstream.StreamConfig{Discard: jetstream.DiscardNew, MaxMsgs: 100}, ""},
	} {
		v := streamVerifier{cfg: testConfig("")}
		got := lossWarning(v.cfg, &stream.Info{Config: test.stream}) + v.perSubjectLimitWarning(test.stream)
		if (got == "") != (test.warning == "") || !strings.Contains(got, test.warning) {
			t.Errorf("%s: the warning is %q, want %q", name, got, test.warning)
		}
	}
}

// TestAStreamThatIsEditedToLoseIsReportedUntilItIsMended: settings are read again while changes are delivered, and while
// there are none.
func TestAStreamThatIsEditedToLoseIsReportedUntilItIsMended(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	for name, test := range map[string]struct {
		cfg     Config
		edit    func(*jetstream.StreamConfig)
		warning string
	}{
		"little room": {testConfig(server.URL()),
			func(c *jetstream.StreamConfig) { c.Discard, c.MaxMsgs = jetstream.DiscardOld, 100 }, "is small, max_bytes -1 and max_msgs 100"},
		"little time": {testConfig(server.URL()), func(c *jetstream.StreamConfig) { c.MaxAge, c.Duplicates = time.Minute, time.Minute },
			"drops changes after 1m0s"},
		"one version for many": {testConfig(server.URL()), func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
			"several objects share one"},
		"a bucket that ages": {bucketConfig(server.URL()), func(c *jetstream.StreamConfig) { c.MaxAge = 48 * time.Hour },
			"objects that do not change disappear from the bucket"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := test.cfg
			if cfg.Mode != modeKV {
				cfg.Subject = "k8s.{cluster}.{resource}.{namespace}"
			}
			var lines logs.Buffer
			s := openSink(t, cfg, lines.Logger())
			mustPublish(t, s, newPod("web", 1))
			before := streamSettings(t, js, s.cfg.Stream)
			edited := before
			test.edit(&edited)
			for _, idle := range []bool{false, true} {
				for _, settings := range []jetstream.StreamConfig{edited, before} {
					updateStream(t, js, settings)
					passLookInterval(s)
					if idle {
						if err := s.Ping(t.Context()); err != nil {
							t.Fatal(err)
						}
					} else {
						mustPublish(t, s, newPod("web", 2))
					}
					warning := strings.Join(warningsOf(s), "\n")
					if loses := settings.MaxAge != before.MaxAge || settings.MaxMsgs != before.MaxMsgs ||
						settings.MaxMsgsPerSubject != before.MaxMsgsPerSubject; loses != strings.Contains(warning, test.warning) {
						t.Errorf("idle %v, edited %v: the warning is %q", idle, loses, warning)
					}
				}
			}
			if n := strings.Count(lines.String(), "code=SinkMayLose"); n != 2 {
				t.Errorf("logged %d times, want once for each time:\n%s", n, lines.String())
			}
			deleteStream(t, js, s.cfg.Stream)
		})
	}
}

func streamSettings(t *testing.T, js jetstream.JetStream, name string) jetstream.StreamConfig {
	t.Helper()
	found := findStream(t, js, name)
	return found.CachedInfo().Config
}

// passLookInterval makes the next look at the stream due.
func passLookInterval(s *Sink) {
	past := time.Now().Add(-lookInterval)
	s.verifier.lastLook.Store(&past)
}

// TestAStreamThatIsEditedToBeUnfitHoldsTheSinkUntilItIsMended, as at the first look.
func TestAStreamThatIsEditedToBeUnfitHoldsTheSinkUntilItIsMended(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	s := openSink(t, bucketConfig(server.URL()), discardLog)
	mustPublish(t, s, newPod("web", 1))
	settings := streamSettings(t, js, "KV_objects")
	for _, rollups := range []bool{false, true} {
		settings.AllowRollup = rollups
		updateStream(t, js, settings)
		if rollups {
			mustPublish(t, s, newPod("web", 2))
			continue
		}
		passLookInterval(s)
		for range 2 {
			mustBeUnavailable(t, s, newPod("web", 2), `stream "KV_objects" is no key-value bucket`)
		}
	}
}

func TestBatchesBeginSoonAfterTheStreamIsEditedToTakeThem(t *testing.T) {
	server := startServer(t, "")
	js := connectClient(t, server.URL())
	createStreamWithoutBatches(t, server)
	s := openSink(t, testConfig(server.URL()), discardLog)
	mustPublish(t, s, newPod("web", 1))
	settings := streamSettings(t, js, "K8S")
	settings.AllowBatchPublish = true
	updateStream(t, js, settings)
	passLookInterval(s)
	mustPublish(t, s, newPod("web", 2))
	mustPublish(t, s, newPod("web", 3))
	if got := readMessages(t, js, "K8S"); len(got) != 3 || got[2].Headers().Get(headerOffset) == "" {
		t.Errorf("%d messages, the last one with the headers %v", len(got), got[len(got)-1].Headers())
	}
}

func TestAFullStreamThatDropsYoungChangesIsReported(t *testing.T) {
	found := &stream.Info{Config: jetstream.StreamConfig{Name: "K8S", Discard: jetstream.DiscardOld, MaxBytes: 1 << 30}}
	found.State.Bytes, found.State.FirstTime = 1<<30, time.Now().Add(-10*time.Minute)
	if got := lossWarning(Config{}, found); !strings.Contains(got, "drops changes that are not an hour old") {
		t.Errorf("got %q", got)
	}
	found.State.FirstTime = time.Now().Add(-25 * time.Hour)
	if got := lossWarning(Config{}, found); got != "" {
		t.Errorf("got %q", got)
	}
	if got := lossWarning(Config{Mode: modeKV}, found); !strings.Contains(got, "disappear from the bucket") {
		t.Errorf("a bucket: %q", got)
	}
}
