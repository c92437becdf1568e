package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// readWithin bounds one run of a reader. It is far above what it takes, and no measurement.
const readWithin = 3 * time.Minute

// python builds the environment once.
var python = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	return build.Python(ctx)
})

// readElsewhere has independent consumers read both buses, and compares what they understood with what the test has
// read: the same changes under the same keys. The exporter must have stopped.
func (s *fixture) readElsewhere(format string) {
	s.t.Helper()
	require.Program(s.t, "python3", "install Python 3.10 or later")
	interpreter, err := python()
	s.must(err)
	s.receiveAll()
	places := [][]string{
		{"kafka", strings.Join(s.kafka.Brokers(), ","), s.name + "."},
		{"nats", s.nats.URL(), s.name},
	}
	for i, b := range s.buses {
		ctx, cancel := context.WithTimeout(s.t.Context(), readWithin)
		var complaints bytes.Buffer
		command := exec.CommandContext(ctx, interpreter, append([]string{"readers/read.py", format}, places[i]...)...)
		command.Stderr = &complaints
		out, err := command.Output()
		cancel()
		if err != nil {
			s.t.Errorf("%s: the reader in Python: %v\n%s", b.Name(), err, complaints.String())
			continue
		}
		s.sameAs(b, "Python", out)
	}
	s.readByKcat()
}

// kcat is fetched once.
var kcat = sync.OnceValues(func() (reader [2]string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	reader[0], reader[1], err = build.Kcat(ctx)
	return reader, err
})

// readByKcat has kcat read the topics, and compares keys and the IDs in headers with what the test has read. In a format
// without an ID in headers it is in the value.
func (s *fixture) readByKcat() {
	s.t.Helper()
	program, err := kcat()
	if err != nil {
		require.Skip(s.t, err.Error())
	}
	var out bytes.Buffer
	for _, topic := range s.topics() {
		ctx, cancel := context.WithTimeout(s.t.Context(), readWithin)
		var complaints bytes.Buffer
		command := exec.CommandContext(ctx, program[0], "-C", "-J", "-e", "-q", "-o", "beginning",
			"-b", strings.Join(s.kafka.Brokers(), ","), "-t", topic)
		command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+program[1])
		command.Stderr = &complaints
		text, err := command.Output()
		cancel()
		if err != nil {
			s.t.Fatalf("kcat: %v\n%s", err, complaints.String())
		}
		for line := range strings.Lines(string(text)) {
			s.must(json.NewEncoder(&out).Encode(ofKcat(s.t, line)))
		}
	}
	s.sameAs(s.buses[0], "kcat", out.Bytes())
}

// topics are those that the test has read.
func (s *fixture) topics() []string {
	topics := make(map[string]bool)
	for _, r := range s.buses[0].records {
		topic, _, _ := strings.Cut(r.Place, "/")
		topics[topic] = true
	}
	return slices.Sorted(maps.Keys(topics))
}

// ofKcat reads a record as kcat writes it.
func ofKcat(t *testing.T, line string) (record struct{ Key, ID string }) {
	t.Helper()
	var read struct {
		Key     string
		Headers []string // names and values in turn
		Payload *string
	}
	if err := json.Unmarshal([]byte(line), &read); err != nil {
		t.Fatalf("kcat wrote %s: %v", line, err)
	}
	record.Key = read.Key
	for i := 0; i+1 < len(read.Headers); i += 2 {
		if name := read.Headers[i]; name == "id" || name == "ce_id" {
			record.ID = read.Headers[i+1]
		}
	}
	if record.ID == "" && read.Payload != nil {
		if err := json.Unmarshal([]byte(*read.Payload), &record); err != nil {
			t.Fatalf("kcat found neither an ID in headers nor one in the value of %s: %v", line, err)
		}
		record.Key = read.Key
	}
	return record
}

// sameAs compares what was read elsewhere, a JSON object a line, with what was read here.
func (s *fixture) sameAs(b *received, reader string, out []byte) {
	s.t.Helper()
	here, elsewhere := make(map[string]bool), make(map[string]bool)
	for _, r := range b.records {
		here[r.Key+" "+r.ID] = true
	}
	for line := range strings.Lines(string(out)) {
		var r struct{ Key, ID string }
		s.must(json.Unmarshal([]byte(line), &r))
		elsewhere[r.Key+" "+r.ID] = true
	}
	var differ []string
	for r := range here {
		if !elsewhere[r] && !b.compacted {
			differ = append(differ, "not read by "+reader+": "+r)
		}
	}
	for r := range elsewhere {
		if !here[r] {
			differ = append(differ, "read by "+reader+" only: "+r)
		}
	}
	if len(differ) > 0 || len(here) == 0 {
		s.t.Errorf("%s: %d changes here, %d read by %s:\n%s", b.Name(), len(here), len(elsewhere), reader, first(differ))
	}
	s.t.Logf("%s: %s understood %d changes", b.Name(), reader, len(elsewhere))
}
