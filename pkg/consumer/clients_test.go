package consumer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

// clientHistories is how many histories a client in another language rebuilds, half of them from one partition.
const clientHistories = 600

// TestThePythonClientRebuildsTheSameHistories gives the client the histories that the rules of this package are held by.
func TestThePythonClientRebuildsTheSameHistories(t *testing.T) {
	rebuildWithClient(t, pythonClient(t, "-m", "kubecdc"))
}

// pythonClient returns a command of Python that finds the client. It reads the code, so that a cached result of the test
// counts for this code only.
func pythonClient(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	require.Program(t, "python3", "install Python 3.9 or later")
	dir := filepath.Join("..", "..", "clients", "python")
	files, err := filepath.Glob(filepath.Join(dir, "kubecdc", "*.py"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no code of the client in %s: %v", dir, err)
	}
	for _, path := range files {
		if _, err := os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "python3", args...)
	c.Dir, c.Env = dir, append(c.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	return c
}

// rebuildWithClient runs a client that reads native objects from its input, one a line, and prints what exists in the end.
// Each history is a cluster of its own; all of them are one input.
func rebuildWithClient(t *testing.T, c *exec.Cmd) {
	t.Helper()
	var input, failures bytes.Buffer
	want := map[string]string{}
	for seed := range uint64(clientHistories) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 19)), seed%4 == 0)
		w.cluster, w.older = "c"+strconv.FormatUint(seed, 10), seed%3 == 0
		w.runHistory()
		order := w.streamOrder()
		if seed%2 == 1 {
			order = w.partitionOrder()
		}
		if w.collides {
			continue
		}
		for _, i := range order {
			input.Write(append(w.values[i], '\n'))
		}
		for key, body := range w.selectedBodies() {
			want[w.cluster+" "+key.Namespace+"/"+key.Name] = body
		}
	}
	c.Stdin, c.Stderr = &input, &failures
	output, err := c.Output()
	if err != nil || failures.Len() > 0 {
		t.Fatalf("%v: %v\n%.2000s", c.Args, err, failures.String())
	}
	for lines := bufio.NewScanner(bytes.NewReader(output)); lines.Scan(); {
		var one struct {
			Cluster, Resource, Namespace, Name string
			Object                             json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		key := fmt.Sprintf("%s %s/%s", one.Cluster, one.Namespace, one.Name)
		var body bytes.Buffer
		if err := json.Compact(&body, one.Object); err != nil || body.String() != want[key] {
			t.Fatalf("%s is %s in the table, and %q in the cluster (%v)", key, one.Object, want[key], err)
		}
		delete(want, key)
	}
	if len(want) > 0 {
		t.Errorf("%d objects are not in the table: %.500v", len(want), want)
	}
}

// TestTheExampleOfThePythonClientRuns runs what its page shows.
func TestTheExampleOfThePythonClientRuns(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "clients", "python", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "```python\n")
	example, _, _ = strings.Cut(example, "```")
	c := pythonClient(t, "-c", example)
	c.Stdin = strings.NewReader(`{"id":"1","type":"added","cluster":"prod","group":"","resource":"pods","namespace":"ns","name":"a","uid":"u","resourceVersion":"5","after":{}}` + "\n")
	if output, err := c.CombinedOutput(); err != nil || string(output) != "ns a 5\n" {
		t.Errorf("the example printed %s (%v)", output, err)
	}
}

// TestClientsRejectWhatIsNoRecord gives them what Parse and Apply reject.
func TestClientsRejectWhatIsNoRecord(t *testing.T) {
	for _, value := range []string{"x", "null", "[]", `{"type":"added"}`, `{"id":1,"type":"added"}`, `{"id":"x","type":"gap"}`, `{"id":"x","type":"added"}`} {
		c := pythonClient(t, "-m", "kubecdc")
		c.Stdin = strings.NewReader(value + "\n")
		if output, err := c.CombinedOutput(); err == nil || !strings.Contains(string(output), "InvalidRecord") {
			t.Errorf("%s: %v: %s", value, err, output)
		}
	}
}
