package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestDeadLetterIsShippedListedRetriedAndDiscarded lets a stream refuse everything, which goes to a topic of dead letters,
// then nothing any more. The last record of its object is delivered when the exporter is started again; what a newer change
// has followed cannot be, and is discarded.
func TestDeadLetterIsShippedListedRetriedAndDiscarded(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	var dir string
	s := newFixture(t, kinds, func(settings *exporter.Settings) {
		dir = settings.Dir
		settings.DeadLetters = map[string]any{"sink": "kafka", "topic": settings.TopicPrefix + ".dead"}
	})
	s.refuseHeavy()
	s.must(s.exporter.Start(t.Context()))
	s.must(s.cluster.Create(t.Context(), heavy(workload.ConfigMaps), s.name, "settled"))
	s.must(s.cluster.Create(t.Context(), heavy(workload.ConfigMaps), s.name, "changed"))
	s.must(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, "changed", 1))
	s.await(s.buses[0], func(records []bus.Record) string {
		shipped := 0
		for _, r := range records {
			if strings.Contains(string(r.Payload), `"deadLetter":{"sink":"nats","reason":"rejected: `) && strings.Contains(r.Place, ".dead") {
				shipped++
			}
		}
		if want := 3; shipped < want {
			return fmt.Sprintf("%d of %d dead letters", shipped, want)
		}
		return ""
	})
	s.must(s.exporter.Stop())
	at := []string{"--sink", "nats", "--config", filepath.Join(dir, "config.yaml")}
	s.acceptEverything()
	letters := s.letters(at)
	first := letters["settled added"]
	if shown := s.ask(append([]string{"deadletters", "show", first}, at...)...); !strings.Contains(shown, `"step":"0"`) || !strings.Contains(shown, "max_msg_size") {
		t.Errorf("shown is %s", shown)
	}
	out := s.ask(append([]string{"deadletters", "retry", letters["changed added"], first, letters["changed updated"]}, at...)...)
	if !strings.Contains(out, "done: 2 are delivered in their turn; 1 stay: a newer change") {
		t.Errorf("with the newer two of three to be sent:\n%s", out)
	}
	s.must(s.exporter.Start(t.Context()))
	s.await(s.buses[1], func(records []bus.Record) string {
		var sent []string
		for _, r := range records {
			if r.Name == "settled" || r.Name == "changed" { // and not what the stream has taken while the exporter ran
				sent = append(sent, r.Name)
			}
		}
		if got := strings.Join(sent, " "); got != "settled changed" {
			return fmt.Sprintf("%q in the stream", got)
		}
		return ""
	})
	s.must(s.exporter.Stop())
	if left := s.letters(at); left["changed added"] == "" || left["settled added"] != "" || left["changed updated"] != "" {
		t.Errorf("left are %v", left)
	}
	s.ask(append([]string{"deadletters", "discard", "--all"}, at...)...)
	if left := s.letters(at); len(left) != 0 {
		t.Errorf("after all are discarded there are %v", left)
	}
}

// letters lists dead letters: offsets by name and type.
func (s *fixture) letters(at []string) map[string]string {
	s.t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(s.ask(append([]string{"deadletters", "list", "-o", "json"}, at...)...)) {
		var letter struct {
			Offset     uint64
			Name, Type string
		}
		s.must(json.Unmarshal([]byte(line), &letter))
		found[strings.TrimSpace(letter.Name+" "+letter.Type)] = fmt.Sprint(letter.Offset)
	}
	return found
}

// command runs a command of the exporter that may fail, and returns its exit code and output.
func (s *fixture) command(args ...string) (code int, out string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, args...)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		s.t.Fatalf("exporter %v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// acceptEverything lets the stream of [fixture.refuseHeavy] take messages of any size.
func (s *fixture) acceptEverything() {
	s.t.Helper()
	js, hangUp, err := bus.Operate(s.nats.URL())
	s.must(err)
	defer hangUp()
	_, err = js.UpdateStream(s.t.Context(), jetstream.StreamConfig{Name: s.name, Subjects: []string{s.name + ".>"}, MaxMsgSize: -1})
	s.must(err)
}

// TestUnshippableDeadLetterIsReportedAndKept takes away Kafka, where the dead letters of a stream go that refuses
// everything. The stream's sink logs once why its dead letter waits; when Kafka is back the letter is there, and all is
// well.
func TestUnshippableDeadLetterIsReportedAndKept(t *testing.T) {
	var dir string
	s := newRestrictedFixture(t, []workload.Kind{workload.ConfigMaps}, func(settings *exporter.Settings) {
		dir = settings.Dir
		settings.DeadLetters = map[string]any{"sink": "kafka", "topic": settings.TopicPrefix + ".dead"}
	})
	s.refuseHeavy()
	s.must(s.exporter.Start(t.Context()))
	s.must(s.cluster.Create(t.Context(), heavy(workload.ConfigMaps), s.name, "shipped"))
	s.awaitBuried("shipped")
	s.awaitMetric(`kubecdc_sink_backlog_changes{sink="nats"}`, "0")
	s.awaitMetric(`kubecdc_sink_dead_letters_held{sink="nats"}`, "0")
	before := len(readFile(t, filepath.Join(dir, "exporter.log"))) // a new topic takes its time, which may be reported
	s.must(s.kafka.Kill())
	s.must(s.cluster.Create(t.Context(), heavy(workload.ConfigMaps), s.name, "refused"))
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "; sink/nats: no lane delivers, 1 of 1 wait")
	s.awaitMetric(`kubecdc_sink_dead_letters_held{sink="nats"}`, "1")
	s.awaitAnswer("/", http.StatusOK, "dead letters wait for sink kafka: ")
	s.must(s.kafka.Restart(t.Context()))
	s.awaitBuried("refused")
	s.awaitMetric(`kubecdc_sink_dead_letters_held{sink="nats"}`, "0")
	s.awaitAnswer("/readyz", http.StatusOK, "ok")
	s.must(s.exporter.Stop())
	log := readFile(t, filepath.Join(dir, "exporter.log"))[before:]
	if n := strings.Count(log, "dead letters are published again"); n != 1 {
		t.Errorf("%d lines say that it is over, want 1:\n%s", n, log)
	}
	said := map[string]bool{} // a broker that comes back may be in the way for another reason for a moment
	for line := range strings.Lines(log) {
		if _, why, ok := strings.Cut(line, "a dead letter cannot be published"); ok {
			if said[why] {
				t.Errorf("said twice: %s", why)
			}
			said[why] = true
		}
	}
	if len(said) == 0 {
		t.Errorf("no line says that a dead letter waits:\n%s", log)
	}
}

// awaitBuried waits until the topic of dead letters holds a change of an object.
func (s *fixture) awaitBuried(name string) {
	s.t.Helper()
	s.await(s.buses[0], func(records []bus.Record) string {
		for _, r := range records {
			if r.Name == name && strings.Contains(r.Place, ".dead") {
				return ""
			}
		}
		return "the dead letter of " + name
	})
}
