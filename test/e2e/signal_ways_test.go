package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

const signalToken = "a-token-that-is-in-no-log-0123456789"

// signalWays are the ways by which signals reach the exporters of a test, besides the socket.
type signalWays struct {
	tokenFile string
}

// configureSignals lets the exporter take signals by all ways.
func (w *signalWays) configureSignals(s *exporter.Settings) {
	s.Admin = map[string]any{"signals": map[string]any{"token": map[string]any{"file": w.tokenFile}}}
}

func newSignalWays(t *testing.T) *signalWays {
	t.Helper()
	w := &signalWays{tokenFile: filepath.Join(t.TempDir(), "token")}
	if err := os.WriteFile(w.tokenFile, []byte(signalToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// byAdmin are the flags that name an exporter by its admin server.
func (w *signalWays) byAdmin(e *exporter.Exporter) []string {
	return []string{"--server", "http://" + e.Address(), "--token-file", w.tokenFile}
}

// variable matches what differs between two signals that ask for the same.
var variable = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z|\b[a-z2-7]{10}\b|\b\d[0-9hms]*\b`)

func withoutVariables(text string) string { return variable.ReplaceAllString(text, "_") }

// awaitNewest waits until the newest signal that is kept is another one than before and has ended, unless it is a pause, and
// returns it.
func (s *fixture) awaitNewest(before keptSignal) (newest keptSignal) {
	s.t.Helper()
	await.Condition(s.t, "signals", arriveWithin, lookEvery, func() string {
		if all := s.listSignals(s.exporter); len(all) > 0 {
			newest = all[len(all)-1]
		}
		if newest.ID == before.ID || newest.Signal != "pause" && newest.State == "active" {
			return fmt.Sprintf("the end of a signal, the newest is %+v", newest)
		}
		return ""
	})
	return newest
}

// asked is one request, as arguments of exporter signal and as JSON, and a series with its value afterwards.
type asked struct {
	args, request string
	series, value string
}

// TestSignalsAreTheSameByEveryWay sends the same signals by the socket, by the admin server, and there without the
// command, in turns. The answers are the same, and so are states, results and effects.
func TestSignalsAreTheSameByEveryWay(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	w := newSignalWays(t)
	s := newFixture(t, kinds, w.configureSignals, func(settings *exporter.Settings) { settings.Rule = map[string]any{"name": "all"} })
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
	const paused, rulePaused = `kubecdc_sink_paused{sink="nats"}`, `kubecdc_rule_paused{rule="all"}`
	script := []asked{
		{"pause --sink nats --for 1h", `{"signal":"pause","sink":"nats","for":"1h"}`, paused, "1"},
		{"pause --sink nats", `{"signal":"pause","sink":"nats"}`, paused, "1"},
		{"resume --sink nats", `{"signal":"resume","sink":"nats"}`, paused, "0"},
		{"resume --sink nats", `{"signal":"resume","sink":"nats"}`, paused, "0"},
		{"pause --sink mian", `{"signal":"pause","sink":"mian"}`, paused, "0"},
		{"pause --rule all --for 1h", `{"signal":"pause","rule":"all","for":"1h"}`, rulePaused, "1"},
		{"resume --rule all", `{"signal":"resume","rule":"all"}`, rulePaused, "0"},
		{"pause --rule other", `{"signal":"pause","rule":"other"}`, rulePaused, "0"},
		{"snapshot --sink nats --select configmaps -n " + s.name, `{"signal":"snapshot","sink":"nats","select":["configmaps"],"namespace":"` + s.name + `"}`, paused, "0"},
		{"snapshot --sink nats --select Pods", `{"signal":"snapshot","sink":"nats","select":["Pods"]}`, paused, "0"},
		{"replay --sink kafka --since 1000000", `{"signal":"replay","sink":"kafka","offset":1000000}`, paused, "0"},
		{"cancel aaaaaaaaaa", `{"signal":"cancel","target":"aaaaaaaaaa"}`, paused, "0"},
		{"deadletters discard --all --sink nats", `{"signal":"deadletters.discard","sink":"nats","all":true}`, paused, "0"},
	}
	ways := []string{"socket", "admin", "http"}
	answers, kept := map[string][]string{}, map[string][]string{}
	var newest keptSignal
	for _, way := range ways {
		for _, one := range script {
			answers[way] = append(answers[way], s.sendSignal(way, w, one))
			newest = s.awaitNewest(newest)
			s.awaitMetric(one.series, one.value)
		}
		all := s.listSignals(s.exporter) // of those that have changed nothing only the last ones, more than a way has
		for _, one := range all[len(all)-len(script):] {
			one.ID = "_"
			kept[way] = append(kept[way], withoutVariables(fmt.Sprintf("%+v", one)))
		}
		if got, want := strings.Join(kept[way], "\n"), strings.Join(kept["socket"], "\n"); got != want {
			t.Errorf("signals by %s are\n%s\nand by the socket\n%s", way, got, want)
		}
	}
	if got, want := strings.Join(answers["admin"], ""), strings.Join(answers["socket"], ""); got != want {
		t.Errorf("the command prints by the admin server\n%s\nand by the socket\n%s", got, want)
	}
	s.checkWrongTokens(w)
	s.awaitAll()
	sent := s.listSignals(s.exporter)
	s.must(s.exporter.Stop())
	s.checkSnapshots(sent, len(ways))
	log, err := os.ReadFile(s.exporter.Log())
	s.must(err)
	if bytes.Contains(log, []byte(signalToken)) {
		t.Error("the token is in the log")
	}
	if wrong := s.history().Judge(s.buses[0].records, oracle.Rules{}); len(wrong) > 0 {
		t.Errorf("the sink that no signal changes has %d points:\n%s", len(wrong), first(wrong))
	}
}

// checkSnapshots checks that NATS has so many snapshots that were asked for, each with all objects.
func (s *fixture) checkSnapshots(sent []keptSignal, want int) {
	s.t.Helper()
	s.receiveAll()
	for _, one := range sent {
		if one.Signal != "snapshot" || one.State != "done" {
			continue
		}
		want--
		n := 0
		for _, r := range s.buses[1].records {
			if r.Type == "snapshot" && strings.Contains(r.ID, "/snapshot/"+one.ID+".") {
				n++
			}
		}
		if n == 0 || n != one.Count {
			s.t.Errorf("the snapshot %+v has %d records", one, n)
		}
	}
	if want != 0 {
		s.t.Errorf("%d snapshots are missing", want)
	}
}

// sendSignal sends a signal in one of the ways, and returns its answer.
func (s *fixture) sendSignal(way string, w *signalWays, one asked) string {
	s.t.Helper()
	args := strings.Fields(one.args)
	if args[0] != "deadletters" {
		args = append([]string{"signal"}, args...)
	}
	switch way {
	case "http":
		status, answer := s.postSignal(one.request)
		if status != http.StatusOK {
			s.t.Errorf("%s is answered with %d, %s", one.request, status, answer)
		}
		return answer
	case "admin":
		args = append(args, w.byAdmin(s.exporter)...)
	default:
		args = append(args, "--config", s.exporter.Config())
	}
	code, out := s.command(args...)
	return withoutVariables(fmt.Sprintf("%s: exit code %d\n%s", one.args, code, out))
}

// postSignal sends a request to the admin server as a program does, and returns the status and the answer.
func (s *fixture) postSignal(request string) (status int, answer string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+s.exporter.Address()+"/v1/signals", strings.NewReader(request))
	s.must(err)
	r.Header.Set("Authorization", "Bearer "+signalToken)
	response, err := http.DefaultClient.Do(r)
	s.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	s.must(err)
	return response.StatusCode, string(text)
}

// checkWrongTokens checks that a wrong token is refused, and that a token that is replaced counts at once.
func (s *fixture) checkWrongTokens(w *signalWays) {
	s.t.Helper()
	wrong := &signalWays{tokenFile: w.tokenFile + ".wrong"}
	s.must(os.WriteFile(wrong.tokenFile, []byte("another-token-0123456789"), 0o600))
	list := []string{"signal", "list"}
	if code, out := s.command(append(list, wrong.byAdmin(s.exporter)...)...); code != 3 || !strings.Contains(out, "does not accept the token") {
		s.t.Errorf("with a wrong token: %d, %s", code, out)
	}
	s.must(os.Rename(wrong.tokenFile, w.tokenFile))
	s.ask(append(list, w.byAdmin(s.exporter)...)...)
	s.must(os.Remove(w.tokenFile))
	s.awaitAnswer("/readyz", http.StatusOK, "[!]signals/admin SignalsUnreceived")
	s.must(os.WriteFile(w.tokenFile, []byte(signalToken), 0o600))
	s.ask(append(list, w.byAdmin(s.exporter)...)...)
}
