package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// signalsArrive is the line of /readyz once signals in the topic are taken.
const signalsArrive = "[+]signals/kafka ok"

const signalToken = "a-token-that-is-in-no-log-0123456789"

// signalWays are the ways by which signals reach the exporters of a test, besides the socket.
type signalWays struct {
	tokenFile, subject, topic string
}

// configureSignals lets the exporter take signals by all ways.
func (w *signalWays) configureSignals(s *exporter.Settings) {
	s.Admin = map[string]any{"signals": map[string]any{"tokenFile": w.tokenFile}}
	s.Signals = map[string]any{
		"nats":  map[string]any{"sink": "nats", "subject": w.subject},
		"kafka": map[string]any{"sink": "kafka", "topic": w.topic},
	}
}

func newSignalWays(t *testing.T) *signalWays {
	t.Helper()
	name := fmt.Sprintf("signals-%d", fixtures.Add(1))
	w := &signalWays{tokenFile: filepath.Join(t.TempDir(), "token"), subject: name, topic: name}
	if err := os.WriteFile(w.tokenFile, []byte(signalToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// byAdmin are the flags that name an exporter by its admin server.
func (w *signalWays) byAdmin(e *exporter.Exporter) []string {
	return []string{"--server", "http://" + e.Address(), "--token-file", w.tokenFile}
}

// senders are what a test sends signals with to the buses.
type senders struct {
	kafka *kgo.Client
	nats  *nats.Conn
}

func (s *fixture) newSenders() senders {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...), kgo.UnknownTopicRetries(-1))
	s.must(err)
	s.t.Cleanup(client.Close)
	js, hangUp, err := bus.Operate(s.nats.URL())
	s.must(err)
	s.t.Cleanup(hangUp)
	return senders{client, js.Conn()}
}

// writeSignals writes requests into the topic.
func (s *fixture) writeSignals(to senders, topic string, requests ...string) {
	s.t.Helper()
	for _, one := range requests {
		s.must(to.kafka.ProduceSync(s.t.Context(), &kgo.Record{Topic: topic, Value: []byte(one)}).FirstErr())
	}
}

// variable matches what differs between two signals that ask for the same.
var variable = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z|"record":\{[^}]*\},?|\b[a-z2-7]{10}\b|\b\d[0-9hms]*\b`)

func withoutVariables(text string) string { return variable.ReplaceAllString(text, "_") }

// awaitSignals waits until the active exporter has so many signals, and all but pauses have ended, and returns them.
func (s *fixture) awaitSignals(active func() *exporter.Exporter, n int) (all []keptSignal) {
	s.t.Helper()
	await.Condition(s.t, "signals", arriveWithin, lookEvery, func() string {
		e := active()
		if code, out := s.command("signal", "list", "--config", e.Config()); code == 3 { // it is no longer
			return out
		}
		all = s.listSignals(e)
		ended := 0
		for _, one := range all {
			if one.Signal == "pause" || one.State != "active" {
				ended++
			}
		}
		if len(all) < n || ended < len(all) {
			return fmt.Sprintf("%d signals with an end, there are %d and %d", n, len(all), ended)
		}
		return ""
	})
	return all
}

func (s *fixture) itself() *exporter.Exporter { return s.exporter }

// asked is one request, as arguments of exporter signal and as JSON, and a series with its value afterwards.
type asked struct {
	args, request string
	series, value string
}

// TestSignalsAreTheSameByEveryWay sends the same signals by the socket, the admin server, NATS and Kafka, in turns. The
// answers are the same, and so are states, results and effects.
func TestSignalsAreTheSameByEveryWay(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	w := newSignalWays(t)
	s := newFixture(t, kinds, w.configureSignals, func(settings *exporter.Settings) { settings.Rule = map[string]any{"name": "all"} })
	makeTopic(t, s.kafka.Brokers(), w.topic)
	s.must(s.exporter.Start(t.Context()))
	s.awaitAnswer("/readyz?verbose", http.StatusOK, signalsArrive)
	s.awaitAnswer("/readyz?verbose", http.StatusOK, "[+]signals/nats ok")
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
	to := s.newSenders()
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
		{"deadletters discard --all --sink nats", `{"signal":"deadletters.discard","sink":"nats"}`, paused, "0"},
	}
	ways := []string{"socket", "admin", "nats", "kafka"}
	answers, kept, count := map[string][]string{}, map[string][]string{}, 0
	for _, way := range ways {
		for _, one := range script {
			answers[way] = append(answers[way], s.sendSignal(way, w, to, one))
			count++
			all := s.awaitSignals(s.itself, count)
			s.awaitMetric(one.series, one.value)
			if len(all) != count {
				t.Fatalf("%s by %s: there are %d signals and not %d", one.request, way, len(all), count)
			}
		}
		for _, one := range s.listSignals(s.exporter)[count-len(script):] {
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
	s.checkAnswersByNATS(to, w, answers["nats"])
	s.checkWrongTokens(w)
	s.awaitAll()
	sent := s.listSignals(s.exporter)
	s.must(s.exporter.Stop())
	s.checkSnapshots(sent, len(ways))
	if _, err := to.nats.Request(w.subject, []byte(script[0].request), arriveWithin); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a request to an exporter that has stopped: %v", err)
	}
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
func (s *fixture) sendSignal(way string, w *signalWays, to senders, one asked) string {
	s.t.Helper()
	args := append([]string{"signal"}, strings.Fields(one.args)...)
	switch way {
	case "nats":
		answer, err := to.nats.Request(w.subject, []byte(one.request), arriveWithin)
		s.must(err)
		return string(answer.Data)
	case "kafka":
		s.writeSignals(to, w.topic, one.request)
		return ""
	case "admin":
		args = append(args, w.byAdmin(s.exporter)...)
	default:
		args = append(args, "--config", s.exporter.Config())
	}
	code, out := s.command(args...)
	return withoutVariables(fmt.Sprintf("%s: exit code %d\n%s", one.args, code, out))
}

// checkAnswersByNATS checks that each answer is that of the socket to the same request, and that something else is answered
// as there, too.
func (s *fixture) checkAnswersByNATS(to senders, w *signalWays, answers []string) {
	s.t.Helper()
	for _, answer := range answers {
		var a struct {
			Signals []struct{ ID, Signal, State string }
			Error   string
		}
		if err := json.Unmarshal([]byte(answer), &a); err != nil || len(a.Signals) != 1 || len(a.Signals[0].ID) != 10 || a.Signals[0].State == "" || a.Error != "" {
			s.t.Errorf("NATS answers %s", answer)
		}
	}
	for _, request := range []string{`{"signal":"resume","sink":"nats"}`, `{"signal":`, `{"signal":"pause","for":"x"}`} {
		answer, err := to.nats.Request(w.subject, []byte(request), arriveWithin)
		s.must(err)
		if got, want := withoutVariables(string(answer.Data)), withoutVariables(s.postToSocket(request)); got != want {
			s.t.Errorf("%s: NATS answers %s, and the socket %s", request, got, want)
		}
	}
}

// postToSocket sends a request as the command does, and returns the body of the answer.
func (s *fixture) postToSocket(request string) string {
	s.t.Helper()
	socket := filepath.Join(filepath.Dir(s.exporter.Config()), "journal", "signal.sock")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://exporter/v1/signals", strings.NewReader(request))
	s.must(err)
	answer, err := client.Do(r)
	s.must(err)
	defer answer.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(answer.Body)
	s.must(err)
	return strings.TrimSuffix(text.String(), "\n")
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

// signalRecords is how many signals TestSignalsInATopicAreTakenOnce writes between two ends of the active exporter.
const signalRecords = 12

// TestSignalsInATopicAreTakenOnce writes signals into a topic while the active exporter is killed and its volume taken,
// again and again. Each is taken once by one of them; those from before the first start never.
func TestSignalsInATopicAreTakenOnce(t *testing.T) {
	for _, stateIn := range []string{"nats", "kafka"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			w := newSignalWays(t)
			p := newPair(t, []workload.Kind{workload.ConfigMaps}, stateIn, w.configureSignals)
			makeTopic(t, p.kafka.Brokers(), w.topic)
			to := p.newSenders()
			p.writeSignals(to, w.topic, `{"signal":"pause","sink":"kafka"}`, "old")
			p.start()
			p.awaitAnswerOf(p.active(), "/readyz?verbose", signalsArrive) // from then on they are taken
			p.checkStandby(w)
			want := []string{}
			write := func() {
				for i := range signalRecords / 2 {
					request := fmt.Sprintf(`{"signal":"resume","sink":"of record %d"}`, 2+len(want))
					if i%3 == 0 {
						request = fmt.Sprintf(`{"malformed %d`, 2+len(want))
					}
					p.writeSignals(to, w.topic, request)
					want = append(want, request)
				}
			}
			for range 4 {
				write()
				active := p.active()
				write() // some of which is read when it is killed
				p.kill(active)
				p.deleteLease()
				p.must(active.Start(t.Context()))
				p.awaitAnswerByNATS(to, w)
			}
			p.awaitSignals(p.active, len(want))
			p.checkTaken(p.active(), want)
		})
	}
}

// TestSignalsInATopicAreTakenOnceByOneExporter writes signals into a topic while an exporter with a volume is killed,
// stopped, and gets other configurations.
func TestSignalsInATopicAreTakenOnceByOneExporter(t *testing.T) {
	w := newSignalWays(t)
	s := newFixture(t, []workload.Kind{workload.ConfigMaps}, w.configureSignals)
	makeTopic(t, s.kafka.Brokers(), w.topic)
	to := s.newSenders()
	s.writeSignals(to, w.topic, `{"signal":"pause","sink":"kafka"}`, "old")
	s.must(s.exporter.Start(t.Context()))
	s.awaitAnswer("/readyz?verbose", http.StatusOK, signalsArrive)
	want := []string{}
	for round := range 6 {
		for range signalRecords {
			request := fmt.Sprintf(`{"signal":"resume","sink":"of record %d"}`, 2+len(want))
			s.writeSignals(to, w.topic, request)
			want = append(want, request)
		}
		switch round % 3 {
		case 0:
			s.must(s.exporter.Kill())
			s.must(s.exporter.Start(t.Context()))
		case 1:
			s.must(s.exporter.Stop())
			s.must(s.exporter.Start(t.Context()))
		default: // other timeouts of the connections
			s.must(s.exporter.Configure(func(given *exporter.Settings) {
				given.Kafka = map[string]any{"requestTimeout": fmt.Sprint(10+round, "s")}
				given.NATS = map[string]any{"ackTimeout": fmt.Sprint(10+round, "s")}
			}))
			s.awaitConfiguration()
		}
		s.awaitAnswerByNATS(to, w)
	}
	s.awaitSignals(s.itself, len(want))
	s.checkTaken(s.exporter, want)
}

// lossNoticed is how long a sender waits for an answer before it asks again.
const lossNoticed = 2 * time.Second

// awaitAnswerByNATS waits until an exporter answers a request, which is none, so that the list does not have it.
func (s *fixture) awaitAnswerByNATS(to senders, w *signalWays) {
	s.t.Helper()
	await.Condition(s.t, "signals over NATS", arriveWithin, lookEvery, func() string {
		answer, err := to.nats.Request(w.subject, []byte("{"), lossNoticed)
		switch {
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrTimeout): // one that was killed may have it
			return "an exporter that answers"
		case err != nil || !bytes.Contains(answer.Data, []byte("this is no signal")):
			s.t.Fatalf("NATS answers %v, %v", answer, err)
		}
		return ""
	})
}

// checkTaken checks that an exporter has exactly one signal of each record behind the second.
func (s *fixture) checkTaken(e *exporter.Exporter, want []string) {
	s.t.Helper()
	type takenRecord struct {
		Sink, State, Result string
		Record              struct{ Offset int }
	}
	all := strings.Split(strings.TrimSpace(s.ask("signal", "list", "--config", e.Config(), "-o", "json")), "\n")
	if len(all) != len(want) {
		s.t.Errorf("%d records have %d signals", len(want), len(all))
	}
	for i, line := range all[:min(len(all), len(want))] {
		var one takenRecord
		s.must(json.Unmarshal([]byte(line), &one))
		isRequest := strings.Contains(want[i], "resume")
		if one.Record.Offset != 2+i || isRequest && one.Sink != fmt.Sprintf("of record %d", 2+i) || one.State != "refused" ||
			isRequest == strings.HasPrefix(one.Result, "the record is no signal") {
			s.t.Errorf("record %d, %s, has the signal %s", 2+i, want[i], line)
		}
	}
}

// checkStandby checks that a standby answers at its admin server as at its socket.
func (p *replicas) checkStandby(w *signalWays) {
	p.t.Helper()
	active := p.active()
	standby := p.other(active)
	for _, ask := range [][]string{{"signal", "pause", "--sink", "nats"}, {"signal", "list"}} {
		code, out := p.command(append(slices.Clone(ask), "--config", standby.Config())...)
		again, same := p.command(append(slices.Clone(ask), w.byAdmin(standby)...)...)
		if code != 3 || again != code || same != out || !strings.Contains(out, "standby") || !strings.Contains(out, identity(slices.Index(p.all, active))) {
			p.t.Errorf("a standby answers %v by the socket with %d, %s, and by the admin server with %d, %s", ask, code, out, again, same)
		}
	}
}
