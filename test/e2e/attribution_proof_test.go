package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// proof is a control plane that logs nothing of one user. Its changes have no author, whatever the other one asks for.
type proof struct {
	*audited
	t                *testing.T
	logged, unlogged *user
	n                int
	mustHaveNone     map[string]string // what happened, by UID of objects that only the unlogged user changed
	mustBeNamed      map[string]string // what happened, by ID of changes that only the logged user made
}

// unloggedUser is the user without a log.
const unloggedUser = 9

// withUnlogged edits the printed audit policy: it drops all events of one user, and has more rules before the printed ones.
func withUnlogged(rules ...string) func(*audited, *controlplane.Options) {
	return func(a *audited, _ *controlplane.Options) {
		all := append([]string{"rules:", "{level: None, users: [" + writer(unloggedUser) + "]}"}, rules...)
		printed := readText(a.t, filepath.Join(a.dir, "audit-policy.yaml"))
		a.writeFile("audit-policy.yaml", []byte(strings.Replace(printed, "rules:\n", strings.Join(all, "\n  - ")+"\n", 1)))
		a.admission = strings.NewReplacer("operations: [UPDATE, DELETE]", "operations: [CREATE, UPDATE, DELETE]", // as the printed policy has it for level Metadata
			"resourceRules:\n", "resourceRules:\n      - {apiGroups: [example.io], apiVersions: ['*'], operations: [UPDATE], resources: ['*']}\n")
	}
}

func newProof(t *testing.T) *proof {
	a := newAudited(t, withUnlogged("{level: RequestResponse, resources: [{group: example.io}]}"))
	return &proof{audited: a, t: t, logged: a.newUser(1), unlogged: a.newUser(unloggedUser),
		mustHaveNone: map[string]string{}, mustBeNamed: map[string]string{}}
}

// TestForgedTablesAndReusedNamesNameNoWrongAuthor lets one user write custom resources that look like the API server's
// answer to another, of whom nothing is logged, and evict a pod by a name that the other gives to the next pod, over a
// restart.
func TestForgedTablesAndReusedNamesNameNoWrongAuthor(t *testing.T) {
	require.Long(t)
	p := newProof(t)
	p.createTables()
	if err := p.exporter.Configure(func(s *exporter.Settings) {
		s.Audit["window"] = "25s"
		s.Resources[0]["select"] = append(s.Resources[0]["select"].([]string), "tables.example.io")
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.forgeTables()
	p.awaitSettled() // then the next process does not read again who had the name
	evicted := p.evictByName("busy-0")
	if err := p.exporter.Kill(); err != nil {
		t.Fatal(err)
	}
	again := p.createPod(p.unlogged, "busy-0", evicted)
	p.mustHaveNone[again.Metadata.UID] = "eviction of the next pod of a name"
	p.unlogged.mustDo(t, http.MethodPost, "/api/v1/namespaces/busy-0/pods/"+evicted+"/eviction", eviction(evicted, ""))
	if err := p.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.awaitSettled()
	p.verify()
}

// TestRequestsThatFoundAVersionNameNoAuthor lets one user, of whom nothing is logged, patch and delete objects, while no
// exporter runs. Another asks for the same after that, changes nothing, and is answered with the same versions. That must
// not make him the author, whether the API server knows the admission policy, as for the first type, or not.
func TestRequestsThatFoundAVersionNameNoAuthor(t *testing.T) {
	require.Long(t)
	a := newAudited(t, withUnlogged(), func(a *audited, _ *controlplane.Options) {
		a.admission = strings.NewReplacer(`resources: ["services"`, `resources: ["others"`)
	})
	p := &proof{audited: a, t: t, logged: a.newUser(1), unlogged: a.newUser(unloggedUser), mustHaveNone: map[string]string{}, mustBeNamed: map[string]string{}}
	if err := p.exporter.Configure(func(s *exporter.Settings) { s.Audit["window"] = "25s" }); err != nil {
		t.Fatal(err)
	}
	annotated, bare := attributedKinds[0], attributedKinds[3]
	created := map[string]answerHead{}
	for _, kind := range []attributedKind{annotated, bare} {
		for _, name := range []string{"patched", "marked", "marked-before", "updated", "mine"} {
			all := fmt.Sprintf(kind.path, "busy-0")
			created[all+"/"+name] = p.unlogged.mustDo(t, http.MethodPost, all, "{"+kind.head+`,"metadata":{"name":"`+name+`","finalizers":["example.io/x"]},`+kind.spec+"}")
		}
		p.unlogged.mustDo(t, http.MethodDelete, fmt.Sprintf(kind.path, "busy-0")+"/marked-before", "")
	}
	if err := p.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.awaitSettled()
	if err := p.exporter.Kill(); err != nil {
		t.Fatal(err)
	}
	p.findVersions(annotated, true, created)
	p.findVersions(bare, false, created)
	if err := p.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.awaitSettled()
	p.verify()
	for deadline := time.Now().Add(arriveWithin); p.sumMetric(`kubecdc_unresolved_total{reason="annotation"}`) == 0; await.Pause(t, lookEvery) {
		if time.Now().After(deadline) { // it is counted when the window is over
			t.Fatal("no change is counted that has no author because of the admission policy")
		}
	}
}

// findVersions lets both users write to the objects of a kind, whose versions at first are in created.
func (p *proof) findVersions(kind attributedKind, annotated bool, created map[string]answerHead) {
	p.t.Helper()
	const change = `{"metadata":{"labels":{"a":"b"}}}`
	all := fmt.Sprintf(kind.path, "busy-0") + "/"
	for _, u := range []*user{p.unlogged, p.logged} {
		u.mustDo(p.t, http.MethodPatch, all+"patched", change)
		u.mustDo(p.t, http.MethodDelete, all+"marked", "")
	}
	p.unlogged.mustDo(p.t, http.MethodPatch, all+"marked-before", change)
	p.logged.mustDo(p.t, http.MethodDelete, all+"marked-before", "")
	found := map[string]string{"patched": "a patch", "marked": "a delete", "marked-before": "a delete of a deleted object"}
	for name, what := range found {
		p.mustHaveNone[created[all+name].Metadata.UID] = what + " that found the version"
	}
	name := func(h answerHead, what string) {
		p.mustBeNamed[h.Metadata.UID+"/"+h.Metadata.ResourceVersion+"/updated"] = what
	}
	body, exists := p.logged.readSigned(p.t.Context(), all+"updated", `"annotations":{"signed":"update"}`)
	if !exists {
		p.t.Fatal("the object to be updated is not there")
	}
	name(p.logged.mustDo(p.t, http.MethodPut, all+"updated", body), "an update with a precondition")
	if patched := p.logged.mustDo(p.t, http.MethodPatch, all+"mine", change); annotated {
		name(patched, "a patch")
	} else {
		p.mustHaveNone[patched.Metadata.UID] = "a patch of which nothing shows that it changed something"
	}
}

const (
	dryOptions  = `{"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions","dryRun":["All"],"gracePeriodSeconds":0}`
	realOptions = `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}`
)

func eviction(name, options string) string {
	return `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + name + `"}` + options + `}`
}

// createTables creates a custom resource whose objects may have rows.
func (p *proof) createTables() {
	p.t.Helper()
	p.unlogged.mustDo(p.t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1",
		"kind":"CustomResourceDefinition","metadata":{"name":"tables.example.io"},"spec":{"group":"example.io","scope":"Namespaced",
		"names":{"plural":"tables","kind":"Table","listKind":"TableList","singular":"table"},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(p.t, lookEvery) {
		if code, _ := p.unlogged.doRequest(p.t.Context(), http.MethodGet, tables, ""); code == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatal("the custom resource is not served")
		}
	}
}

const tables = "/apis/example.io/v1/namespaces/busy-0/tables"

func table(name, version, rows string) string {
	return `{"apiVersion":"example.io/v1","kind":"Table","metadata":{"name":"` + name + `","resourceVersion":"` + version + `"},"rows":[` + rows + `]}`
}

// forgeTables lets the logged user write objects with rows that have the identity of another's change, or a huge version.
func (p *proof) forgeTables() {
	p.t.Helper()
	row := func(uid, version string) string {
		return `{"object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"uid":"` + uid + `","resourceVersion":"` + version + `"}}}`
	}
	mine := p.logged.mustDo(p.t, http.MethodPost, tables, table("mine", "", ""))
	name := p.nextName()
	p.unlogged.mustDo(p.t, http.MethodPost, "/api/v1/namespaces/busy-0/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"}}`)
	theirs := p.unlogged.mustDo(p.t, http.MethodPatch, "/api/v1/namespaces/busy-0/configmaps/"+name, `{"data":{"a":"b"}}`)
	p.mustHaveNone[theirs.Metadata.UID] = "a Table of a custom resource"
	mine = p.logged.mustDo(p.t, http.MethodPut, tables+"/mine", table("mine", mine.Metadata.ResourceVersion, row(theirs.Metadata.UID, theirs.Metadata.ResourceVersion)))
	mine = p.logged.mustDo(p.t, http.MethodPut, tables+"/mine", table("mine", mine.Metadata.ResourceVersion, row("x", "9000000000000000000")))
	p.mustBeNamed[mine.Metadata.UID+"/"+mine.Metadata.ResourceVersion+"/updated"] = "a Table with a huge version"
	later := p.logged.mustDo(p.t, http.MethodPatch, tables+"/mine", `{"rows":[],"spec":{"later":"yes"}}`)
	p.mustBeNamed[later.Metadata.UID+"/"+later.Metadata.ResourceVersion+"/updated"] = "a patch after a Table with a huge version"
}

// evictByName lets the logged user evict a pod without its UID, and returns its name once the eviction has its author.
func (p *proof) evictByName(namespace string) string {
	p.t.Helper()
	h := p.createPod(p.logged, namespace, p.nextName())
	p.pastCreation()
	p.logged.mustDo(p.t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods/"+h.Metadata.Name+"/eviction", eviction(h.Metadata.Name, ""))
	p.mustBeNamed[h.Metadata.UID+"//deleted"] = "an eviction by name"
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(p.t, lookEvery) {
		for _, c := range p.readRecords() {
			if of, _ := c["of"].(string); c["type"] == "attributed" && strings.Contains(of, h.Metadata.UID) && strings.HasSuffix(of, "/deleted") {
				return h.Metadata.Name
			}
		}
		if time.Now().After(deadline) {
			p.t.Fatal("the eviction has no author")
		}
	}
}

// pastCreation waits until the newest object certainly existed by the clock of the API server, whose creationTimestamp has
// whole seconds.
func (p *proof) pastCreation() {
	began := time.Now()
	for time.Now().Unix() < began.Unix()+2 {
		await.Pause(p.t, lookEvery)
	}
}

func (p *proof) nextName() string {
	p.n++
	return fmt.Sprintf("o-%d", p.n)
}

func (p *proof) createPod(u *user, namespace, name string) answerHead {
	p.t.Helper()
	return u.mustDo(p.t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"`+name+
		`","labels":{"name":"`+name+`"}},"spec":{"containers":[{"name":"c","image":"x"}],"terminationGracePeriodSeconds":0}}`)
}

func (p *proof) verify() {
	p.t.Helper()
	records := p.readRecords()
	by := p.authorsByID(records)
	for _, c := range records {
		id, _ := c["id"].(string)
		uid, _ := c["uid"].(string)
		if what := p.mustHaveNone[uid]; what != "" && by[id] != "" && c["type"] != "attributed" {
			p.t.Errorf("%s: %s has author %s", what, id, by[id])
		}
		for _, key := range []string{fmt.Sprintf("%s/%v/%v", uid, c["resourceVersion"], c["type"]), fmt.Sprintf("%s//%v", uid, c["type"])} {
			if what := p.mustBeNamed[key]; what != "" && by[id] == p.logged.name {
				delete(p.mustBeNamed, key)
			}
		}
	}
	for key, what := range p.mustBeNamed {
		p.t.Errorf("%s: %s has no author", what, key)
	}
}
