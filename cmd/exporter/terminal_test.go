package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// steering is text that acts on terminals: an escape sequence, C1 controls, bidi controls, hidden characters, lines.
const steering = "\x1b]0;x\x07\u009b2J\u202e\u2066\u200b\u2028\U000e0001"

// TestNoCommandSteersTheTerminal with text of objects, of destinations, of servers and of its own arguments.
func TestNoCommandSteersTheTerminal(t *testing.T) {
	body, err := json.Marshal(map[string]string{"text": steering, steering: "name"})
	must(t, err)
	c := change(1)
	c.Name, c.After, c.Actor = "x"+steering, body, &event.Actor{Manager: steering}
	dir := t.TempDir()
	storeDeadLetter(t, dir, c, "refused: "+steering)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, steering, http.StatusTeapot) }))
	defer server.Close()
	kubeconfig := kubeconfigOf(t, server.URL)
	config := write(t, "c.yaml", "cluster: {kubeconfig: "+kubeconfig+"}\nresources: [{select: [pods]}]\nsinks: [{name: out, webhook: {url: '"+server.URL+"'}}]\njournal: {dir: "+dir+"}\n")
	answered := runSocket(t, steering)
	outputs := 0
	for _, args := range [][]string{
		{"journal", "dump", "--dir", dir}, {"journal", "stat", "--dir", dir}, {"journal", "stat", "--dir", dir, "-o", "json"},
		{"deadletters", "list", "--sink", "bus", "--dir", dir}, {"deadletters", "list", "--sink", "bus", "--dir", dir, "-o", "json"},
		{"deadletters", "show", "1", "--sink", "bus", "--dir", dir}, {"deadletters", "show", "2", "--sink", steering, "--dir", dir},
		{"signal", "list", "--dir", answered}, {"signal", "list", "--dir", answered, "-o", "json"},
		{"explain", "--config", config}, {"validate", "--online", "--config", config}, {"rbac", "--config", config},
		{"verify", "--config", config, "--sink", "out"}, {"verify", "--config", config, "--sink", steering},
		{"tap", "--select", "pods", "--kubeconfig", steering},
		{"top", "--once", "--address", strings.TrimPrefix(server.URL, "http://")},
		{"run", "--config", steering}, {"validate", "--config", write(t, "bad.yaml", "resources: [{select: [\""+"x\\u009b\\u202e"+"\"]}]\n")},
		{steering}, {"journal", steering}, {"run", "--" + steering},
	} {
		_, stdout, stderr := try(t, args...)
		if strings.ContainsAny(stdout+stderr, steering[:1]+"\x07\u009b\u202e\u2066\u200b\u2028\U000e0001") {
			t.Errorf("%q writes\n%q\n%q", args, stdout, stderr)
		}
		if strings.Contains(stdout+stderr, "009b") {
			outputs++
		}
	}
	if outputs < 10 {
		t.Errorf("only %d outputs show the text", outputs)
	}
}

// TestEscapedOutputIsTheSameJSON for the programs that read it.
func TestEscapedOutputIsTheSameJSON(t *testing.T) {
	body, err := json.Marshal(steering)
	must(t, err)
	c := change(1)
	c.After = []byte(`{"text":` + string(body) + `}`)
	dir := t.TempDir()
	storeDeadLetter(t, dir, c, steering)
	for _, args := range [][]string{{"journal", "dump", "--dir", dir}, {"deadletters", "show", "1", "--sink", "bus", "--dir", dir}} {
		stdout, _ := read(t, dir, args...)
		var got struct {
			Reason string
			Change struct{ After struct{ Text string } }
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || got.Change.After.Text != steering || args[0] == "deadletters" && got.Reason != steering {
			t.Errorf("%v: read %q, %q (%v)", args, got.Change.After.Text, got.Reason, err)
		}
	}
}

// runSocket answers requests for signals as an exporter does, with one of a hostile result.
func runSocket(t *testing.T, result string) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // a path of a socket is short
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path, err := signals.SocketPath(dir)
	must(t, err)
	l, err := net.Listen("unix", path)
	must(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"signals": []signals.Signal{{ID: "1", Kind: "pause", Sink: "bus", State: "failed", Result: result}}})
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return dir
}
