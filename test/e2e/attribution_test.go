package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	auditedUsers = 10
	masked       = "***"
	planted      = "VALUE-THAT-NOBODY-MAY-SEE"
	apiServer    = "kube-apiserver" // the name in its client certificate
	writesEnv    = "KUBECDC_ATTRIBUTION_WRITES"
	fewWrites    = 600
	concludesIn  = "40s" // audit.window
	// settlesIn is longer than the second pause of an API server whose events nobody took, 15 to 18 s: on a busy machine the
	// exporter may start when the first, 10 to 12 s, has ended already.
	settlesIn    = "20s"
	namesAtLeast = 0.99
	hotAtLeast   = 0.98
	manyChanges  = 1500 // at full size the smallest of the tests has more changes than this
	// namesOfSeveral is lower: two requests to two API servers that were answered with one version leave the author open.
	namesOfSeveral = 0.97
	// namesOfShipped is lower: a restart loses the states of pods, which bindings and evictions need, and events that come by
	// connections of their own are not compared.
	namesOfShipped = 0.8
	spread, hot    = 15, 2 // names of each kind
)

// audited is a control plane whose API server sends its audit events to an exporter, as configured by exporter audit-policy.
type audited struct {
	t         *testing.T
	program   string
	plane     *controlplane.ControlPlane
	exporter  *exporter.Exporter
	dir       string
	stream    string // file of the stream
	webhook   string // address
	sendTo    string // host, or host and port, to which the API servers send their events
	forges    bool   // each write has a forged stamp, if the policy of stamps can replace it
	older     bool   // the second API server does not know the policy of stamps
	stamped   bool   // authors are known from stamps, which do not name the impersonator
	eventless bool   // the exporter gets no audit events
	ca        []byte
	// admission edits the printed admission policy; nil: not
	admission *strings.Replacer
	client    *http.Client
	by        *clientAnswers
	ends      int // number of awaitSettled calls
}

// newAudited starts the control plane, but not the exporter.
func newAudited(t *testing.T, with ...func(*audited, *controlplane.Options)) *audited {
	t.Helper()
	runAlongside(t)
	a := &audited{t: t, program: program(t), dir: t.TempDir(), sendTo: "127.0.0.1", by: newClientAnswers()}
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	a.webhook, a.stream = ports.Address(free[0]), filepath.Join(a.dir, "stream.jsonl")
	authority := certificates.New(t)
	a.ca = authority.PEM
	a.writeFile("ca.crt", authority.PEM)
	a.writeFile("exporter-ca.crt", authority.PEM)
	for name, common := range map[string]string{"client": apiServer, "server": "exporter", "other": "somebody"} {
		cert, key := authority.IssueFor(t, common)
		a.writeFile(name+".crt", cert)
		a.writeFile(name+".key", key)
	}
	settings := a.exporterSettings("")
	a.writeFile("offline.yaml", must(json.Marshal(map[string]any{
		"resources": settings.Resources, "audit": settings.Audit, "sinks": []any{map[string]any{"name": "out", "stdout": map[string]any{}}},
	})))
	a.writeFile("audit-policy.yaml", a.auditPolicy("policy"))
	options := controlplane.Options{Dir: filepath.Join(a.dir, "plane"), APIServerArgs: []string{"--request-timeout=5s"}}
	for _, flag := range strings.Split(string(a.auditPolicy("flags")), "\n") {
		if strings.HasPrefix(flag, "--") {
			options.APIServerArgs = append(options.APIServerArgs, flag)
		}
	}
	for i := range auditedUsers {
		options.Users = append(options.Users, controlplane.User{Name: writer(i), Token: "token-" + writer(i), Groups: []string{"system:masters"}})
	}
	for _, edit := range with {
		edit(a, &options)
	}
	a.writeFile("audit-webhook.kubeconfig", a.auditPolicy("kubeconfig"))
	if a.plane, err = controlplane.Start(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must(os.ReadFile(a.plane.CAFile())))
	a.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: auditedUsers}}
	t.Cleanup(a.client.CloseIdleConnections)
	a.prepareCluster()
	if a.exporter, err = exporter.New(a.program, a.exporterSettings(a.plane.Kubeconfig())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(a.exporter.LogTail())
		}
		if err := a.exporter.Stop(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func writer(i int) string { return fmt.Sprintf("writer-%d", i) }

func (a *audited) writeFile(name string, content []byte) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, name), content, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *audited) exporterSettings(kubeconfig string) exporter.Settings {
	file := func(name string) string { return filepath.Join(a.dir, name) }
	audit := map[string]any{"settle": settlesIn, "window": concludesIn, "countersEvery": "1s"}
	audit["webhook"] = map[string]any{
		"listen": a.webhook, "cert": file("server.crt"), "key": file("server.key"), "clientCA": file("ca.crt"), "clients": []string{apiServer},
	}
	return exporter.Settings{
		Dir: a.dir, Kubeconfig: kubeconfig, File: a.stream, Audit: audit,
		Resources: []map[string]any{{"select": []string{"configmaps", "secrets", "deployments.apps", "replicasets.apps", "pods", "services", "roles.rbac.authorization.k8s.io"},
			"namespaces": map[string]any{"include": []string{"busy-*"}}}},
	}
}

// logPath is the path of the API server's audit log.
func (a *audited) logPath() string { return filepath.Join(a.dir, "plane", "apiserver.audit.log") }

// auditPolicy runs exporter audit-policy.
func (a *audited) auditPolicy(part string) []byte {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), arriveWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.program, "audit-policy", part, "-c", filepath.Join(a.dir, "offline.yaml"), "--dir", a.dir, "--server", a.sendTo)
	out, err := cmd.Output()
	if err != nil {
		a.t.Fatalf("audit-policy %s: %v", part, err)
	}
	return out
}

// prepareCluster creates the namespaces and applies the admission policy.
func (a *audited) prepareCluster() {
	a.t.Helper()
	admin := a.newUser(0)
	for i := range 2 {
		admin.mustDo(a.t, "POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"busy-`+strconv.Itoa(i)+`"}}`)
	}
	printed := string(a.auditPolicy("admission"))
	if a.admission != nil {
		printed = a.admission.Replace(printed)
	}
	policy, binding, _ := strings.Cut(printed, "---\n")
	a.applyPolicy("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic", policy, binding)
	a.awaitPolicy(admin)
}

// applyPolicy creates an admission policy and its binding.
func (a *audited) applyPolicy(at, policy, binding string) {
	a.t.Helper()
	admin := a.newUser(0)
	admin.contentType = "application/yaml"
	admin.mustDo(a.t, "POST", at+"ies", policy)
	admin.mustDo(a.t, "POST", at+"ybindings", binding)
}

// awaitPolicy waits until the admission policy is active: it writes Secrets until an audit event has its annotation.
func (a *audited) awaitPolicy(u *user) {
	a.t.Helper()
	deadline := time.Now().Add(arriveWithin)
	for i := 0; ; i++ {
		u.mustDo(a.t, "POST", "/api/v1/namespaces/default/secrets", fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"probe-%d"}}`, i))
		if text, err := os.ReadFile(a.logPath()); err == nil && bytes.Contains(text, []byte("kubecdc-identity/uid")) {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatal("the admission policy annotates nothing")
		}
		time.Sleep(lookEvery)
	}
}

// awaitSettled waits until everything that was written is emitted and every change is resolved.
func (a *audited) awaitSettled() {
	a.t.Helper()
	a.ends++
	name, before := fmt.Sprintf("%s-%d", theEnd, a.ends), a.countResolved()
	for _, kind := range attributedKinds {
		body := "{" + kind.head + `,"metadata":{"name":"` + name + `"},` + kind.spec + "}"
		a.newUser(1).mustDo(a.t, "POST", fmt.Sprintf(kind.path, "busy-0"), body)
	}
	told := func() (n int) {
		for _, c := range a.readRecords() {
			if c["name"] == name && c["type"] == "added" {
				n++
			}
		}
		return n
	}
	deadline := time.Now().Add(arriveWithin)
	concluded := before + float64(len(attributedKinds)) // the end objects must have been seen, too
	for told() < len(attributedKinds) || a.countResolved() < concluded || a.sumMetric("kubecdc_attribution_pending_changes") > 0 {
		if time.Now().After(deadline) {
			a.t.Fatal("changes are never resolved")
		}
		await.Pause(a.t, lookEvery)
	}
}

// countResolved returns the number of changes that were resolved since the exporter was started.
func (a *audited) countResolved() float64 {
	a.t.Helper()
	return a.sumMetric("kubecdc_attributed_total") + a.sumMetric("kubecdc_unresolved_total")
}

// theEnd is the name prefix of the last objects, which mark the end of the stream.
const theEnd = "the-end"

// sumMetric returns the sum of the series of a family.
func (a *audited) sumMetric(name string) (sum float64) {
	a.t.Helper()
	_, text, err := a.exporter.Get(a.t.Context(), "/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name); found && (rest[0] == ' ' || rest[0] == '{') {
			fields := strings.Fields(line)
			value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				a.t.Fatal(err)
			}
			sum += value
		}
	}
	return sum
}

// writesOf returns the number of writes of a test: few in the pipeline.
func writesOf(t *testing.T) int {
	t.Helper()
	text := os.Getenv(writesEnv)
	if text == "" {
		return fewWrites
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", writesEnv, err)
	}
	return n
}

// verifyNames compares the authors in the stream with the truth. At least this share of the changes must have one.
func (a *audited) verifyNames(atLeast float64) {
	a.t.Helper()
	a.awaitSettled()
	v := a.judgeStream()
	a.t.Logf("%d changes, %d named (%.2f %%), %d judged, %d wrong; of %d of Secrets %d; not named: %v",
		v.changes, v.named, 100*float64(v.named)/float64(v.changes), v.judged, v.wrong, v.secrets, v.secretsNamed, v.unnamed)
	if v.isTooFew(atLeast) || v.judged < v.named/2 || v.secretsNamed == 0 {
		a.t.Errorf("too few authors, or too few judged")
	}
}

// isTooFew reports whether significantly fewer changes than this share have an author. The number of users that meet at one
// version varies, which matters if changes are few: four standard deviations are allowed, and none if changes are many.
func (v *verdict) isTooFew(atLeast float64) bool { return areTooFew(v.named, v.changes, atLeast) }

func areTooFew(named, changes int, atLeast float64) bool {
	unnamed := (1 - atLeast) * float64(changes)
	if changes < manyChanges {
		unnamed += 4 * math.Sqrt(unnamed)
	}
	return changes == 0 || float64(changes-named) > unnamed
}

// TestALogFileIsSentToTheWebhook runs the documented loop on the machine of an API server that only writes a log. While the
// exporter is down, it waits with the event that it holds.
func TestALogFileIsSentToTheWebhook(t *testing.T) {
	require.Long(t)
	a := newAudited(t, func(a *audited, o *controlplane.Options) {
		o.APIServerArgs = slices.DeleteFunc(o.APIServerArgs, func(flag string) bool { return strings.HasPrefix(flag, "--audit-webhook") })
	})
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	page := readText(t, filepath.Join("..", "..", "docs", "audit-trail.md"))
	_, block, _ := strings.Cut(page, "```sh tested by TestALogFileIsSentToTheWebhook\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("the page lacks the command")
	}
	loop := strings.NewReplacer("audit.log", a.logPath(), "HOST:9443", a.webhook, "ca.crt", "exporter-ca.crt").Replace(block)
	shell := exec.CommandContext(t.Context(), "bash", "-c", loop)
	shell.Dir, shell.SysProcAttr = a.dir, &syscall.SysProcAttr{Setpgid: true} // tail and curl end with it
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		_ = shell.Wait()
	})
	a.writeLoad(fewWrites/12, spread)
	if err := a.exporter.Stop(); err != nil {
		t.Fatal(err)
	}
	a.writeLoad(fewWrites/12, spread)
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.awaitSettled()
	v := a.judgeStream()
	t.Logf("%d changes, %d named, %d judged, %d wrong; not named: %v", v.changes, v.named, v.judged, v.wrong, v.unnamed)
	if v.isTooFew(namesOfShipped) {
		t.Error("too few authors")
	}
}

// TestUsersAtTheSameObjectsAreNamed lets the users contend for two objects of each kind.
func TestUsersAtTheSameObjectsAreNamed(t *testing.T) {
	a := newAudited(t)
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.writeLoad(writesOf(t), hot)
	a.verifyNames(hotAtLeast)
}

// TestEventsOfSeveralAPIServersAreUsed lets the users write through two API servers, with separate clocks as far as the
// exporter knows.
func TestEventsOfSeveralAPIServersAreUsed(t *testing.T) {
	require.Long(t)
	a := newAudited(t, func(_ *audited, o *controlplane.Options) { o.Second = true })
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.writeLoad(fewWrites, spread)
	a.verifyNames(namesOfSeveral)
}

// verifyNoSecrets searches every file that the exporter has written, its journal included.
func (a *audited) verifyNoSecrets() {
	a.t.Helper()
	if err := a.exporter.Stop(); err != nil {
		a.t.Error(err)
	}
	err := filepath.WalkDir(a.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if entry != nil && entry.Name() == "plane" {
				return filepath.SkipDir
			}
			return err
		}
		text, err := os.ReadFile(path)
		for _, value := range []string{planted, "VkFMVUUtVEhBVC1OT0JPRFktTUFZLVNFR"} { // as base64
			if bytes.Contains(text, []byte(value)) {
				a.t.Errorf("%s holds the value of a Secret", path)
			}
		}
		return err
	})
	if err != nil {
		a.t.Error(err)
	}
}

// TestAcceptedAuditEventsAreNeverLost kills the exporter repeatedly under load. Each accepted event that proves the author
// of a change must lead to a record. At full size the exporter also stays away for a minute, and the API server repeats its
// events.
func TestAcceptedAuditEventsAreNeverLost(t *testing.T) {
	require.Long(t)
	kills, away := 3, time.Duration(0)
	if os.Getenv(writesEnv) != "" {
		kills, away = 10, time.Minute
	}
	l := &auditRelay{mangle: passAll}
	a := newAudited(t, l.connectTo)
	if away > 0 { // the API server may try for the last time 80 s after the first
		if err := a.exporter.Configure(func(s *exporter.Settings) { s.Audit["window"] = "90s" }); err != nil {
			t.Fatal(err)
		}
	}
	for range kills {
		if err := a.exporter.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.writeLoad(fewWrites/6, spread)
		if err := a.exporter.Kill(); err != nil {
			t.Fatal(err)
		}
		a.writeLoad(fewWrites/12, spread)
	}
	time.Sleep(away) // the absence under test
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.awaitSettled()
	v := a.judgeStream()
	t.Logf("%d changes, %d named (%.2f %%), %d judged, %d wrong; not named: %v", v.changes, v.named,
		100*float64(v.named)/float64(v.changes), v.judged, v.wrong, v.unnamed)
	if v.isTooFew(0.9) {
		t.Error("too few authors")
	}
	a.verifyAcceptedEvents(l)
}

// TestAPIServerLossesAreReported overflows the buffer of an API server, and kills it under load.
func TestAPIServerLossesAreReported(t *testing.T) {
	require.Long(t)
	a := newAudited(t, func(_ *audited, o *controlplane.Options) {
		o.APIServerArgs = append(o.APIServerArgs, "--audit-webhook-batch-buffer-size=20", "--audit-webhook-batch-max-size=10",
			"--audit-webhook-batch-throttle-enable=true", "--audit-webhook-batch-throttle-qps=2", "--audit-webhook-batch-throttle-burst=1")
	})
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.awaitGap("audit events before it sent them", func() { a.writeLoad(fewWrites/2, spread) })
	var loading sync.WaitGroup
	loading.Go(func() { a.writeLoad(fewWrites/2, spread) })
	if err := a.plane.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	loading.Wait()
	if err := a.plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.awaitGap("an API server was started at", func() {})
	a.writeLoad(fewWrites/6, spread)
	a.awaitSettled()
	v := a.judgeStream()
	t.Logf("%d changes, %d named (%.2f %%), %d judged, %d wrong", v.changes, v.named, 100*float64(v.named)/float64(v.changes), v.judged, v.wrong)
	if v.judged == 0 {
		t.Error("nothing is judged")
	}
}

// awaitGap calls meanwhile until an attribution.gap with this reason is emitted.
func (a *audited) awaitGap(reason string, meanwhile func()) {
	a.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; time.Sleep(lookEvery) {
		meanwhile()
		for _, c := range a.readRecords() {
			if gap, _ := c["gap"].(map[string]any); c["type"] == "attribution.gap" && strings.Contains(fmt.Sprint(gap["reason"]), reason) {
				return
			}
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("no gap says %q", reason)
		}
	}
}
