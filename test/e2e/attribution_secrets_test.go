package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// levels uses each level of the audit log in a namespace of its own, for everything including Secrets and tokens.
const levels = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
  - {level: None, namespaces: [busy-none]}
  - {level: Metadata, namespaces: [busy-metadata]}
  - {level: Request, namespaces: [busy-request]}
  - {level: RequestResponse, namespaces: [busy-answers]}
  - {level: Metadata}
`

// TestAuditEventSecretsAreNeverShown plants values of Secrets and tokens in requests of every kind, at every audit level.
// An exporter reads them through each of its intakes. The values must not be in anything that it shows or stores, while it
// runs or after a kill.
func TestAuditEventSecretsAreNeverShown(t *testing.T) {
	require.Long(t)
	e := servers(t)
	const topic, name = "audit-with-secrets", "audited-secrets"
	log := ""
	a := newAudited(t, func(a *audited, _ *controlplane.Options) {
		a.writeFile("audit-policy.yaml", []byte(levels))
		log = filepath.Join(a.dir, "plane", "apiserver.audit.log")
	})
	makeTopic(t, e.kafka.Brokers(), topic)
	refuseHeavySecrets(t, e.nats.URL(), name)
	configure := a.exporter.Configure(func(s *exporter.Settings) {
		s.Env = append(s.Env, "KUBECDC_LOG_LEVEL=debug")
		s.Audit["kafka"] = map[string]any{"brokers": e.kafka.Brokers(), "topics": []string{topic}}
		s.Sinks = []map[string]any{
			{"name": "file", "stdout": map[string]any{"path": a.stream}},
			{"name": "kafka", "kafka": map[string]any{"brokers": e.kafka.Brokers(), "topic": name, "createTopics": map[string]any{"enabled": true}}},
			{"name": "refuses", "nats": map[string]any{"url": e.nats.URL(), "stream": name, "subject": name + ".{resource}.{namespace}.{name}"}},
		}
	})
	if err := configure; err != nil {
		t.Fatal(err)
	}
	for _, level := range []string{"none", "metadata", "request", "answers"} {
		a.newUser(0).mustDo(t, "POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"busy-`+level+`"}}`)
	}
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := &plants{}
	for _, level := range []string{"none", "metadata", "request", "answers"} {
		a.plantSecrets(p, "/api/v1/namespaces/busy-"+level)
	}
	bySender := a.sumMetric("kubecdc_audit_events_total")
	events := copyTo(t, log, e.kafka.Brokers(), topic)
	if missing := p.valuesNotIn(readText(t, log)); len(missing) > len(p.values)*3/4 {
		t.Fatalf("%d of %d values are not in the audit log, so it proves nothing", len(missing), len(p.values))
	}
	for deadline := time.Now().Add(arriveWithin); bySender == 0 || a.sumMetric("kubecdc_audit_events_total") < bySender+float64(events); time.Sleep(lookEvery) {
		if time.Now().After(deadline) {
			t.Fatalf("%v events, %v of them from the API server, and %d in the topic", a.sumMetric("kubecdc_audit_events_total"), bySender, events)
		}
	}
	a.verifyFilesHoldNone(p) // including waiting evidence
	for _, page := range []string{"/", "/metrics", "/readyz", "/status.json"} {
		_, text, err := a.exporter.Get(t.Context(), page)
		if err != nil {
			t.Fatal(err)
		}
		a.verifyAbsent(p, page, text)
	}
	a.awaitSettled()
	if a.sumMetric("kubecdc_attributed_total") == 0 {
		t.Error("no change has an author, so the stream proves nothing")
	}
	if err := a.exporter.Kill(); err != nil {
		t.Fatal(err)
	}
	a.verifyFilesHoldNone(p)
	a.verifyCommandsShowNone(p)
	reader, err := bus.NewKafka(e.kafka.Brokers(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	read := &received{Reader: reader}
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(t, lookEvery) {
		if err = read.receive(t.Context()); err == nil {
			break
		}
		var wrong *bus.WrongError
		if errors.As(err, &wrong) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if len(read.records) == 0 {
		t.Fatal("there are no records")
	}
	for _, r := range read.records {
		a.verifyAbsent(p, "kafka", fmt.Sprintf("%v %s", r, r.Payload))
	}
}

// plantSecrets makes requests of every kind with values or tokens, in a namespace.
func (a *audited) plantSecrets(p *plants, in string) {
	a.t.Helper()
	ctx, u := a.t.Context(), a.newUser(0)
	b64 := func(v string) string { return base64.StdEncoding.EncodeToString([]byte(v)) }
	secret := func(name, rest string) string {
		return `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"` + name + `"` + rest + `}`
	}
	applied := func() string {
		return fmt.Sprintf(`,"annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q}`, secret("x", `},"stringData":{"p":"`+p.value()+`"}`))
	}
	var ballast []string // makes some too large for the stream of [refuseHeavySecrets]
	for i := range 60 {
		ballast = append(ballast, fmt.Sprintf(`"ballast.example.com/%060d":"x"`, i))
	}
	labels := `,"labels":{` + strings.Join(ballast, ",") + `}`
	at := in + "/secrets"
	for i := range 8 {
		name := fmt.Sprintf("s%d", i)
		u.mustDo(a.t, "POST", at, secret(name, labels+applied()+`},"stringData":{"p":"`+p.value()+`"}`))
		u.mustDo(a.t, "PATCH", at+"/"+name, `{"data":{"p":"`+b64(p.value())+`"},"stringData":{"q":"`+p.value()+`"}}`)
		u.mustDo(a.t, "PATCH", at+"/"+name+"?x="+p.value(), `{"metadata":{"labels":{"a":"b"}}}`)
		u.mustDo(a.t, "PUT", at+"/"+name, secret(name, applied()+`},"data":{"p":"`+b64(p.value())+`"}`))
		u.doRequest(ctx, "POST", at, secret("wrong", `},"data":{"p":"`+p.value()+` is no base64"}`))
		u.doRequest(ctx, "POST", at, secret(p.value()+"_is_no_name", "}"))
		u.contentType = "application/apply-patch+yaml"
		u.mustDo(a.t, "PATCH", at+"/"+name+"?fieldManager=m&force=true", secret(name, `},"stringData":{"p":"`+p.value()+`"}`))
		u.contentType = ""
	}
	u.mustDo(a.t, "POST", in+"/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"robot"}}`)
	for i := range 4 {
		h := u.mustDo(a.t, "POST", in+"/serviceaccounts/robot/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
		var answer struct{ Status struct{ Token string } }
		if json.Unmarshal(h.text, &answer) != nil || answer.Status.Token == "" {
			a.t.Fatalf("no token: %s", h.text)
		}
		p.encoded = append(p.encoded, answer.Status.Token)
		a.withToken(answer.Status.Token, "POST", in+"/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"by-robot"}}`)
		review := `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"` + answer.Status.Token + `"}}`
		u.doRequest(ctx, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
		u.mustDo(a.t, "POST", in+"/configmaps", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"plain-%d"}}`, i))
	}
	p.encoded = append(p.encoded, "token-"+u.name)
	u.mustDo(a.t, "DELETE", at+"/s0", "")
	u.mustDo(a.t, "DELETE", at+"/s1", `{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background"}`)
	u.mustDo(a.t, "DELETE", at, "")
}

// withToken makes a request with a bearer token and repeats it until it is answered with any status.
func (a *audited) withToken(token, method, path, body string) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), arriveWithin)
	defer cancel()
	err := workload.Persist(ctx, func() error {
		request, err := http.NewRequestWithContext(ctx, method, a.newUser(0).url+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", "application/json")
		response, err := a.client.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
	if err != nil {
		a.t.Fatal(err)
	}
}

// valuesNotIn returns the values that a text lacks.
func (p *plants) valuesNotIn(text string) (missing []string) {
	for _, v := range p.values {
		if !strings.Contains(text, v) && !strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(v))) {
			missing = append(missing, v)
		}
	}
	return missing
}

func (a *audited) verifyAbsent(p *plants, where, text string) {
	a.t.Helper()
	if found := p.foundIn(text); found != nil {
		a.t.Errorf("%s holds %d values, among them %.60s", where, len(found), found[0])
	}
}

// verifyFilesHoldNone searches every file of the exporter: the stream, the log and the journal.
func (a *audited) verifyFilesHoldNone(p *plants) {
	a.t.Helper()
	err := filepath.WalkDir(a.dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case entry != nil && entry.Name() == "plane":
			return filepath.SkipDir
		case err != nil && os.IsNotExist(err): // replaced by the journal
			return nil
		case err != nil || entry.IsDir() || entry.Type() == fs.ModeSocket: // of the signals
			return err
		}
		content, err := os.ReadFile(path)
		if a.verifyAbsent(p, path, string(content)); os.IsNotExist(err) {
			return nil
		}
		return err
	})
	if err != nil {
		a.t.Error(err)
	}
}

// verifyCommandsShowNone searches the output of the exporter commands that read the journal, dead letters included.
func (a *audited) verifyCommandsShowNone(p *plants) {
	a.t.Helper()
	ask := func(args ...string) string {
		a.t.Helper()
		ctx, cancel := context.WithTimeout(a.t.Context(), arriveWithin)
		defer cancel()
		out, err := exec.CommandContext(ctx, a.program, append(args, "--config", a.exporter.Config())...).CombinedOutput()
		if err != nil {
			a.t.Fatalf("exporter %v: %v\n%s", args, err, out)
		}
		a.verifyAbsent(p, strings.Join(args, " "), string(out))
		return string(out)
	}
	ask("journal", "stat")
	if text := ask("journal", "dump"); !strings.Contains(text, "attributed") {
		a.t.Error("the journal holds no authors")
	}
	shown := 0
	for line := range strings.Lines(ask("deadletters", "list", "--sink", "refuses", "-o", "json")) {
		var letter struct{ Offset uint64 }
		if json.Unmarshal([]byte(line), &letter) == nil && letter.Offset > 0 && shown < 20 && strings.Contains(line, "secrets") {
			shown++
			ask("deadletters", "show", fmt.Sprint(letter.Offset), "--sink", "refuses")
		}
	}
	if shown == 0 {
		a.t.Error("there is no dead letter of a Secret")
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// copyTo sends the lines of an audit log to a topic, as a log shipper does, and returns their number.
func copyTo(t *testing.T, log string, brokers []string, topic string) (events int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for line := range bytes.Lines([]byte(readText(t, log))) {
		if err := client.ProduceSync(t.Context(), kgo.SliceRecord(line)).FirstErr(); err != nil {
			t.Fatal(err)
		}
		events++
	}
	return events
}

func makeTopic(t *testing.T, brokers []string, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	request := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = topic, 1, 1
	request.Topics = append(request.Topics, one)
	if _, err := request.RequestWith(t.Context(), client); err != nil {
		t.Fatal(err)
	}
}

// refuseHeavySecrets creates a stream that rejects large records.
func refuseHeavySecrets(t *testing.T, url, name string) {
	t.Helper()
	js, hangUp, err := bus.Operate(url)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, MaxMsgSize: 4096}); err != nil {
		t.Fatal(err)
	}
}
