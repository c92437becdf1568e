package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// badEdits are changes of a good file that are refused, with a part of the reason.
var badEdits = map[string][2]string{ // what is added or replaced, and the reason
	"no YAML":               {"]", "not YAML"},
	"an unknown key":        {"\nsinkss: []", "sinkss"},
	"a bad filter":          {"\nroutes: [{select: [pods], filter: '1/0 == 1', drop: true}]", "filter"},
	"a route to nowhere":    {"\nroutes: [{select: [pods], to: [{sink: nobody}]}]", "nobody"},
	"a bad size":            {"\ndelivery: {window: much}", "delivery.window"},
	"another journal":       {"\n#journal", "journal.dir"},
	"another address":       {"\n#admin", "admin.listen"},
	"another cluster":       {"\n#cluster", "cluster cannot change"},
	"another name":          {"\n#name", "cluster.name: the journal in"},
	"another form of lines": {"\nlog: {format: json}", "log.format"},
	"empty":                 {"", "empty"},
}

// TestInvalidReloadsAreRefusedWithoutEffect gives a running exporter bad files. Each is named on /readyz and in the log;
// the exporter stays ready as it was, under the configuration that it had. The good file after them is accepted, and pending
// while no API server answers.
func TestInvalidReloadsAreRefusedWithoutEffect(t *testing.T) {
	dir := t.TempDir()
	good := fmt.Sprintf(`
cluster: {kubeconfig: %[1]s/kubeconfig}
resources: [{select: [pods]}]
sinks: [{name: a, stdout: {path: %[1]s/a.jsonl}}]
journal: {dir: %[1]s/data}
admin: {listen: "127.0.0.1:0"}
`, dir)
	renamed := strings.Replace(good, "/kubeconfig}", "/kubeconfig, name: other}", 1)
	put := func(name, text string) {
		t.Helper()
		fresh := filepath.Join(dir, name+".new")
		if err := os.WriteFile(fresh, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fresh, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	put("kubeconfig", awayKubeconfig)
	put("config.yaml", good)
	cfg, err := config.Load(filepath.Join(dir, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	lines := &logs.Buffer{}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg, "dev", lines) }()
	page := "http://" + awaitLine(t, lines, regexp.MustCompile(`admin=(\S+)`))
	t.Cleanup(http.DefaultClient.CloseIdleConnections)

	for name, w := range badEdits {
		text := good + w[0]
		switch name {
		case "empty":
			text = ""
		case "another journal":
			text = strings.Replace(good, "/data}", "/other}", 1)
		case "another address":
			text = strings.Replace(good, "127.0.0.1:0", "127.0.0.1:1", 1)
		case "another cluster":
			text = strings.Replace(good, "/kubeconfig}", "/kubeconfig, context: c}", 1)
		case "another name":
			text = renamed
		}
		put("config.yaml", text)
		reason := waitForText(t, page+"/readyz", name, regexp.MustCompile(`\[!\]configuration .*`+regexp.QuoteMeta(w[1])))
		if metrics := waitForText(t, page+"/metrics", name, regexp.MustCompile("kubecdc")); !strings.Contains(metrics, `kubecdc_config_info{hash="`+cfg.Hash+`"} 1`) ||
			!strings.Contains(metrics, `kubecdc_condition{code="ConfigRefused",component="configuration",severity="degraded"} 1`) {
			t.Errorf("%s: the metrics do not show the active configuration; /readyz:\n%s", name, reason)
		}
	}
	// The API server is away: nothing can apply the rules of the good file to what it serves.
	put("config.yaml", good+"\n# as good\nroutes: [{select: [pods], filter: 'change.type == \"updated\"', drop: true}]\nlog: {level: debug}\n")
	waitForText(t, page+"/readyz", "the good file", regexp.MustCompile(`\[!\]configuration ConfigPending: discovery: .*127.0.0.1:1`))
	if text := waitForText(t, page+"/metrics", "the good file", regexp.MustCompile(`kubecdc_condition\{code="ConfigPending",component="configuration",severity="degraded"\} 1`)); !strings.Contains(text, cfg.Hash) ||
		strings.Contains(text, "ConfigRefused") || !strings.Contains(text, `kubecdc_config_reloads_total{result="taken"} 0`) {
		t.Errorf("a file that is not in force yet is reported as active:\n%s", text)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if log := lines.String(); strings.Count(log, "level=ERROR") < len(badEdits)-1 { // equal reasons are one line
		t.Errorf("the log names fewer than the refused files:\n%s", log)
	}
	put("config.yaml", renamed)
	if cfg, err = config.Load(filepath.Join(dir, "config.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), cfg, "dev", lines); !errors.As(err, new(*config.Error)) || !strings.Contains(err.Error(), `config.yaml:2: cluster.name: the journal in`) ||
		!strings.Contains(err.Error(), `found "other", expected no name`) {
		t.Errorf("a start under another name: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || slices.ContainsFunc(left, func(f string) bool { return strings.HasSuffix(f, "other") }) {
		t.Errorf("a refused file left something behind: %v (%v)", left, err)
	}
}

// waitForText asks for a page until it has a pattern, and returns it.
func waitForText(t *testing.T, url, what string, pattern *regexp.Regexp) string {
	t.Helper()
	var text []byte
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s was, last:\n%s", what, url, text)
		}
	})
	waitUntil(t, fmt.Sprintf("%s: %v at %s", what, pattern, url), func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }() // only read
		if text, err = io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
		return pattern.Match(text)
	})
	return string(text)
}
