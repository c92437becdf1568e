package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

const (
	auditedUsers = 10
	masked       = "***"
	planted      = "VALUE-THAT-NOBODY-MAY-SEE"
	apiServer    = "kube-apiserver" // the name in its client certificate
	writesEnv    = "KUBECDC_ATTRIBUTION_WRITES"
	fewWrites    = 600
	concludesIn  = "20s" // audit.window
	settlesIn    = "3s"
	namesAtLeast = 0.99
)

// audited is a control plane whose API server sends its audit events to an exporter, as exporter audit-policy says it should.
type audited struct {
	t        *testing.T
	program  string
	plane    *controlplane.ControlPlane
	exporter *exporter.Exporter
	dir      string
	stream   string // file of the stream
	webhook  string // address
	ca       []byte
	client   *http.Client
	by       *answers
}

// newAudited starts the control plane. The exporter is not started.
func newAudited(t *testing.T) *audited {
	t.Helper()
	a := &audited{t: t, program: program(t), dir: t.TempDir(), by: newAnswers()}
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	a.webhook, a.stream = ports.Address(free[0]), filepath.Join(a.dir, "stream.jsonl")
	authority := certificates.New(t)
	a.ca = authority.PEM
	a.write("ca.crt", authority.PEM)
	a.write("exporter-ca.crt", authority.PEM)
	for name, common := range map[string]string{"client": apiServer, "server": "exporter", "other": "somebody"} {
		cert, key := authority.IssueFor(t, common)
		a.write(name+".crt", cert)
		a.write(name+".key", key)
	}
	settings := a.settings("")
	a.write("offline.yaml", must(json.Marshal(map[string]any{
		"resources": settings.Resources, "audit": settings.Audit, "sinks": []any{map[string]any{"name": "out", "stdout": map[string]any{}}},
	})))
	a.write("audit-policy.yaml", a.auditPolicy("policy"))
	a.write("audit-webhook.kubeconfig", a.auditPolicy("kubeconfig"))
	options := controlplane.Options{Dir: filepath.Join(a.dir, "plane"), APIServerArgs: []string{"--request-timeout=5s"}}
	for _, flag := range strings.Split(string(a.auditPolicy("flags")), "\n") {
		if strings.HasPrefix(flag, "--") {
			options.APIServerArgs = append(options.APIServerArgs, flag)
		}
	}
	for i := range auditedUsers {
		options.Users = append(options.Users, controlplane.User{Name: writer(i), Token: "token-" + writer(i), Groups: []string{"system:masters"}})
	}
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
	a.prepare()
	if a.exporter, err = exporter.New(a.program, a.settings(a.plane.Kubeconfig())); err != nil {
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

func (a *audited) write(name string, content []byte) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, name), content, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *audited) settings(kubeconfig string) exporter.Settings {
	file := func(name string) string { return filepath.Join(a.dir, name) }
	return exporter.Settings{
		Dir: a.dir, Kubeconfig: kubeconfig, File: a.stream,
		Resources: []map[string]any{{"select": []string{"configmaps", "secrets", "deployments.apps", "pods", "services"},
			"namespaces": map[string]any{"include": []string{"busy-*"}}}},
		Audit: map[string]any{
			"webhook": map[string]any{
				"listen": a.webhook, "certificate": file("server.crt"), "key": file("server.key"), "clientCA": file("ca.crt"), "clients": []string{apiServer},
			},
			"settle": settlesIn, "window": concludesIn,
		},
	}
}

// auditPolicy runs the command of that name.
func (a *audited) auditPolicy(part string) []byte {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.program, "audit-policy", part, "-c", filepath.Join(a.dir, "offline.yaml"), "--dir", a.dir, "--server", "127.0.0.1")
	out, err := cmd.Output()
	if err != nil {
		a.t.Fatalf("audit-policy %s: %v", part, err)
	}
	return out
}

// prepare makes the namespaces and applies the admission policy.
func (a *audited) prepare() {
	a.t.Helper()
	admin := a.user(0)
	for i := range 2 {
		admin.mustDo(a.t, "POST", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"busy-`+strconv.Itoa(i)+`"}}`)
	}
	policy, binding, _ := strings.Cut(string(a.auditPolicy("admission")), "---\n")
	const at = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
	admin.contentType = "application/yaml"
	admin.mustDo(a.t, "POST", at+"ies", policy)
	admin.mustDo(a.t, "POST", at+"ybindings", binding)
	admin.contentType = ""
	a.awaitPolicy(admin)
}

// awaitPolicy waits until the admission policy is in force: it writes Secrets until an audit event has its note.
func (a *audited) awaitPolicy(u *user) {
	a.t.Helper()
	deadline := time.Now().Add(arriveWithin)
	log := filepath.Join(a.dir, "plane", "apiserver.audit.log")
	for i := 0; ; i++ {
		u.mustDo(a.t, "POST", "/api/v1/namespaces/default/secrets", fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"probe-%d"}}`, i))
		if text, err := os.ReadFile(log); err == nil && bytes.Contains(text, []byte("kubecdc-identity/uid")) {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatal("the admission policy notes nothing")
		}
		time.Sleep(lookEvery)
	}
}

// user writes as one user, and sometimes on behalf of another.
type user struct {
	a           *audited
	name        string
	as          string
	contentType string
}

func (a *audited) user(i int) *user { return &user{a: a, name: writer(i)} }

// actor is the identity as the stream has it: the user, and who impersonated them.
func (u *user) actor() string {
	if u.as != "" {
		return u.as + " by " + u.name
	}
	return u.name
}

func (u *user) do(ctx context.Context, method, path, body string) (int, head) {
	request, err := http.NewRequestWithContext(ctx, method, u.a.plane.URL()+path, strings.NewReader(body))
	if err != nil {
		return 0, head{}
	}
	request.Header.Set("Authorization", "Bearer token-"+u.name)
	request.Header.Set("Content-Type", u.contentType)
	if u.contentType == "" {
		request.Header.Set("Content-Type", "application/json")
		if method == http.MethodPatch {
			request.Header.Set("Content-Type", "application/merge-patch+json")
		}
	}
	if u.as != "" {
		request.Header.Set("Impersonate-User", u.as)
		request.Header.Set("Impersonate-Group", "system:masters")
	}
	response, err := u.a.client.Do(request)
	if err != nil {
		return 0, head{}
	}
	defer response.Body.Close()
	var h head
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return 0, head{}
	}
	h.text = text
	return response.StatusCode, h
}

func (u *user) mustDo(t *testing.T, method, path, body string) {
	t.Helper()
	if code, h := u.do(t.Context(), method, path, body); code/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, path, code, h.text)
	}
}

// head is what an answer says of an object, or of a list of them.
type head struct {
	Kind     string
	Metadata struct {
		Name, UID, ResourceVersion, DeletionTimestamp string
		Annotations                                   map[string]string
		Finalizers                                    []string
	}
	Details struct{ UID string }
	Items   []head
	text    []byte
}

// answers is what the clients were told, which is the truth: who was answered with which version, and who removed what.
type answers struct {
	mu       sync.Mutex
	versions map[string]map[string]bool // uid@version: actors
	removed  map[string]map[string]bool // uid: actors who may have deleted the object
}

func newAnswers() *answers {
	return &answers{versions: map[string]map[string]bool{}, removed: map[string]map[string]bool{}}
}

func (b *answers) note(u *user, h head, removes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add := func(to map[string]map[string]bool, key string) {
		if to[key] == nil {
			to[key] = map[string]bool{}
		}
		to[key][u.actor()] = true
	}
	uid := h.Metadata.UID
	if h.Kind == "Status" {
		uid = h.Details.UID
	} else if uid != "" {
		add(b.versions, uid+"@"+h.Metadata.ResourceVersion)
	}
	if removes && uid != "" {
		add(b.removed, uid)
	}
	for _, item := range h.Items {
		add(b.removed, item.Metadata.UID)
	}
}

// author is who made a change, as far as one client alone can have.
func (b *answers) author(c, before map[string]any) string {
	uid, _ := c["uid"].(string)
	if c["type"] == "deleted" {
		return alone(b.removed[uid])
	}
	after, was := signature(c), signature(before)
	if after != "" && after != masked && after != was { // every write of content signs it
		return after
	}
	if c["class"] == "deleting" {
		return alone(b.removed[uid])
	}
	return alone(b.versions[uid+"@"+c["resourceVersion"].(string)])
}

func alone(actors map[string]bool) string {
	if len(actors) != 1 {
		return ""
	}
	for actor := range actors {
		return actor
	}
	return ""
}

// signature is who signed the state that a record carries; the rest of the annotation makes each signature another.
func signature(c map[string]any) string {
	after, _ := c["after"].(map[string]any)
	metadata, _ := after["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	text, _ := annotations["signed"].(string)
	who, _, _ := strings.Cut(text, "#")
	return who
}

var attributedKinds = []struct{ path, head, spec string }{
	{"/api/v1/namespaces/%s/configmaps", `"apiVersion":"v1","kind":"ConfigMap"`, `"data":{"x":"V"}`},
	{"/api/v1/namespaces/%s/secrets", `"apiVersion":"v1","kind":"Secret"`, `"stringData":{"x":"` + planted + `"}`},
	{"/apis/apps/v1/namespaces/%s/deployments", `"apiVersion":"apps/v1","kind":"Deployment"`, `"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},` +
		`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"x"}]}}}`},
	{"/api/v1/namespaces/%s/services", `"apiVersion":"v1","kind":"Service"`, `"spec":{"clusterIP":"None","ports":[{"port":80}]}`},
	{"/api/v1/namespaces/%s/pods", `"apiVersion":"v1","kind":"Pod"`, `"spec":{"containers":[{"name":"c","image":"x"}]}`},
}

// load makes random writes by all users at once.
func (a *audited) load(writes int) {
	var all sync.WaitGroup
	for i := range auditedUsers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), uint64(writes)))
			u := a.user(i)
			for n := range writes / auditedUsers {
				u.as = ""
				if i >= auditedUsers-2 && r.IntN(2) == 0 {
					u.as = []string{"alice", "bob"}[r.IntN(2)]
				}
				u.one(a.t.Context(), r, n)
			}
		})
	}
	all.Wait()
}

// one makes one write of a random kind.
func (u *user) one(ctx context.Context, r *rand.Rand, n int) {
	kind := attributedKinds[r.IntN(len(attributedKinds))]
	base := fmt.Sprintf(kind.path, "busy-"+strconv.Itoa(r.IntN(2)))
	name := "n" + strconv.Itoa(r.IntN(15))
	item := base + "/" + name
	signed := fmt.Sprintf(`"annotations":{"signed":"%s#%d-%d"}`, u.actor(), n, r.Int64())
	whole := func(meta string) string {
		return "{" + kind.head + `,"metadata":{` + meta + "," + signed + "}," + kind.spec + "}"
	}
	write := func(method, path, body string, removes bool) {
		if code, h := u.do(ctx, method, path, body); code/100 == 2 && !strings.Contains(path, "dryRun") {
			u.a.by.note(u, h, removes)
		}
	}
	scalable, pod := strings.Contains(base, "deployments"), strings.HasSuffix(base, "pods")
	switch p := r.IntN(100); {
	case p < 20:
		write("POST", base, whole(`"name":"`+name+`"`), false)
	case p < 26:
		write("POST", base, whole(`"generateName":"g-","labels":{"g":"`+strconv.Itoa(r.IntN(3))+`"}`), false)
	case p < 38:
		u.readAndWrite(ctx, item, signed, write)
	case p < 56:
		write("PATCH", item, `{"metadata":{`+signed+`}}`, false)
	case p < 60: // often changes nothing
		write("PATCH", item, `{"metadata":{"labels":{"same":"`+strconv.Itoa(r.IntN(2))+`"}}}`, false)
	case p < 66 && !pod:
		u.contentType = "application/apply-patch+yaml"
		write("PATCH", item+"?force=true&fieldManager=m", whole(`"name":"`+name+`"`), false)
		u.contentType = ""
	case p < 70 && scalable:
		write("PATCH", item+"/scale", `{"spec":{"replicas":`+strconv.Itoa(r.IntN(4))+`}}`, false)
	case p < 73 && (scalable || pod):
		write("PATCH", item+"/status", `{"metadata":{`+signed+`},"status":{"conditions":[{"type":"X","status":"True","message":"`+signed[15:30]+`"}]}}`, false)
	case p < 84:
		write("DELETE", item, "", true)
	case p < 88:
		write("PATCH", item, `{"metadata":{"finalizers":["example.io/x"],`+signed+`}}`, false)
	case p < 94:
		write("PATCH", item, `{"metadata":{"finalizers":null}}`, true)
	case p < 96:
		write("DELETE", base+"?labelSelector=g%3D"+strconv.Itoa(r.IntN(3)), "", true)
	case p < 98:
		write("PATCH", item+"?dryRun=All", `{"metadata":{`+signed+`}}`, false)
	default:
		write("PATCH", item, `{"metadata":{"resourceVersion":"1",`+signed+`}}`, false)
	}
}

// readAndWrite updates what it has read, insisting on its version.
func (u *user) readAndWrite(ctx context.Context, item, signed string, write func(method, path, body string, removes bool)) {
	code, h := u.do(ctx, "GET", item, "")
	var o map[string]any
	if code != http.StatusOK || json.Unmarshal(h.text, &o) != nil {
		return
	}
	var annotations map[string]any
	if json.Unmarshal([]byte("{"+signed+"}"), &annotations) != nil {
		return
	}
	o["metadata"].(map[string]any)["annotations"] = annotations["annotations"]
	if body, err := json.Marshal(o); err == nil {
		write("PUT", item, string(body), false)
	}
}

// verdict is what came of all changes.
type verdict struct {
	changes, named, judged, wrong int
	secrets, secretsNamed         int
	unnamed                       map[string]int
}

// judge compares what the stream says with what the clients know.
func (a *audited) judge() verdict {
	a.t.Helper()
	v := verdict{unnamed: map[string]int{}}
	by, again := map[string]string{}, map[string]bool{}
	records := a.records()
	for _, c := range records {
		if c["type"] != "attributed" {
			continue
		}
		who, _ := c["by"].(map[string]any)
		name, _ := who["user"].(string)
		if impersonator, _ := who["impersonator"].(string); impersonator != "" {
			name += " by " + impersonator
		}
		of, _ := c["of"].(string)
		if by[of] != "" && by[of] != name {
			a.t.Errorf("%s is named twice, %s and %s", of, by[of], name)
		}
		by[of] = name
	}
	before := map[string]map[string]any{}
	for _, c := range records {
		id, _ := c["id"].(string)
		uid, _ := c["uid"].(string)
		if !slices.Contains([]any{"added", "updated", "deleted"}, c["type"]) || c["coalesced"] == true || again[id] {
			continue
		}
		again[id] = true
		truth := a.by.author(c, before[uid])
		before[uid] = c
		if c["resource"] == "secrets" {
			v.secrets++
			if by[id] != "" {
				v.secretsNamed++
			}
		} else {
			v.changes++
			if by[id] != "" {
				v.named++
			} else {
				v.unnamed[fmt.Sprint(c["type"], " ", c["resource"], " ", c["class"])]++
			}
		}
		if by[id] == "" || truth == "" {
			continue
		}
		v.judged++
		if by[id] != truth {
			v.wrong++
			a.t.Errorf("%s %s is named %s, and was %s", c["resource"], id, by[id], truth)
		}
	}
	return v
}

func (a *audited) records() []map[string]any {
	a.t.Helper()
	text, err := os.ReadFile(a.stream)
	if err != nil {
		a.t.Fatal(err)
	}
	var all []map[string]any
	for line := range bytes.Lines(text) {
		var c map[string]any
		if json.Unmarshal(line, &c) == nil {
			all = append(all, c)
		}
	}
	return all
}

// settled waits until nothing waits for a name.
func (a *audited) settled() {
	a.t.Helper()
	deadline, quiet := time.Now().Add(arriveWithin), 0
	for quiet < 5 {
		if time.Now().After(deadline) {
			a.t.Fatal("changes wait for ever")
		}
		if a.metric("kubecdc_attribution_pending_changes") == 0 && a.metric("kubecdc_audit_events_total") > 0 {
			quiet++
		} else {
			quiet = 0
		}
		time.Sleep(lookEvery * 2)
	}
}

// metric returns the sum of the series of a family.
func (a *audited) metric(name string) (sum float64) {
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

// TestTheUserBehindAChangeIsNamed has ten users, two of whom act as others, write at random, kills the exporter among it, and
// judges the names in the stream by what the clients were answered.
func TestTheUserBehindAChangeIsNamed(t *testing.T) {
	writes := fewWrites
	if n, err := strconv.Atoi(os.Getenv(writesEnv)); err == nil {
		writes = n
	}
	a := newAudited(t)
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.load(writes)
	a.settled()
	v := a.judge()
	t.Logf("%d changes, %d named (%.2f %%), %d judged, %d wrong; of %d of Secrets %d; not named: %v",
		v.changes, v.named, 100*float64(v.named)/float64(v.changes), v.judged, v.wrong, v.secrets, v.secretsNamed, v.unnamed)
	if float64(v.named) < namesAtLeast*float64(v.changes) || v.judged < v.named/2 || v.secretsNamed == 0 {
		t.Errorf("too few are named, or judged")
	}
	a.strangersAreRefused()
	a.showsNoSecret()
}

// strangersAreRefused posts events with a certificate of another name, and without one.
func (a *audited) strangersAreRefused() {
	a.t.Helper()
	refused := a.metric("kubecdc_audit_refused_total")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.ca)
	other := must(tls.LoadX509KeyPair(filepath.Join(a.dir, "other.crt"), filepath.Join(a.dir, "other.key")))
	for what, certificates := range map[string][]tls.Certificate{"another name": {other}, "no certificate": nil} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}}}
		response, err := client.Post("https://"+a.webhook+"/", "application/json", strings.NewReader(`{"apiVersion":"audit.k8s.io/v1","items":[]}`))
		if err != nil {
			continue
		}
		response.Body.Close()
		if response.StatusCode != http.StatusForbidden || what == "no certificate" {
			a.t.Errorf("%s: %s", what, response.Status)
		}
	}
	for deadline := time.Now().Add(arriveWithin); a.metric("kubecdc_audit_refused_total") < refused+2; time.Sleep(lookEvery) {
		if time.Now().After(deadline) {
			a.t.Fatal("strangers are not counted")
		}
	}
}

// showsNoSecret searches everything that the exporter has written, its journal included.
func (a *audited) showsNoSecret() {
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

// TestNoAuditEventThatWasTakenIsLost kills the exporter again and again under load.
func TestNoAuditEventThatWasTakenIsLost(t *testing.T) {
	a := newAudited(t)
	for range 3 {
		if err := a.exporter.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.load(fewWrites / 6)
		if err := a.exporter.Kill(); err != nil {
			t.Fatal(err)
		}
		a.load(fewWrites / 12)
	}
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.settled()
	v := a.judge()
	t.Logf("%d changes, %d named (%.2f %%), %d judged, %d wrong; not named: %v", v.changes, v.named,
		100*float64(v.named)/float64(v.changes), v.judged, v.wrong, v.unnamed)
	if v.named*10 < v.changes*9 {
		t.Error("too few are named")
	}
}
