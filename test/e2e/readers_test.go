package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
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

// readElsewhere has clients that are not ours read both buses, and compares what they understood with what the test has
// read: the same changes under the same keys. The exporter must have stopped.
func (s *scene) readElsewhere(format string) {
	s.t.Helper()
	require.Program(s.t, "python3", "install Python 3.10 or later")
	interpreter, err := python()
	s.must(err)
	s.listenAll()
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
		s.sameAs(b, out)
	}
}

// sameAs compares what was read elsewhere, a JSON object a line, with what was read here.
func (s *scene) sameAs(b *heard, out []byte) {
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
			differ = append(differ, "not read elsewhere: "+r)
		}
	}
	for r := range elsewhere {
		if !here[r] {
			differ = append(differ, "read elsewhere only: "+r)
		}
	}
	if len(differ) > 0 || len(here) == 0 {
		s.t.Errorf("%s: %d changes here, %d elsewhere:\n%s", b.Name(), len(here), len(elsewhere), first(differ))
	}
	s.t.Logf("%s: a reader in Python understood %s", b.Name(), fmt.Sprint(len(elsewhere), " changes"))
}
