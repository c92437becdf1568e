package e2e

import (
	"context"
	"encoding/json"
	"fmt"
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
