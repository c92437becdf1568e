package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// proof is a control plane that logs nothing of one user. Its changes have no author, whatever the other one asks for.
type proof struct {
	*audited
	t                *testing.T
	logged, unlogged *user
	levels           map[string]string // namespaces by level of the audit log
	n                int
	mustHaveNone     map[string]string // what happened, by UID of objects that only the unlogged user changed
	mustBeNamed      map[string]string // what happened, by ID of changes that only the logged user made
}

func newProof(t *testing.T) *proof {
	a := newAudited(t, func(a *audited, _ *controlplane.Options) {
		path := filepath.Join(a.dir, "audit-policy.yaml")
		policy := strings.Replace(readText(t, path), "rules:\n", `rules:
  - {level: None, users: [`+writer(9)+`]}
  - {level: Metadata, namespaces: [busy-1]}
  - {level: RequestResponse, resources: [{group: example.io}]}
`, 1)
		if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		a.admission = strings.NewReplacer("operations: [UPDATE]", "operations: [CREATE, UPDATE, DELETE]") // as the printed policy has it for level Metadata
	})
	return &proof{audited: a, t: t, logged: a.newUser(1), unlogged: a.newUser(9), levels: map[string]string{"RequestResponse": "busy-0", "Metadata": "busy-1"},
		mustHaveNone: map[string]string{}, mustBeNamed: map[string]string{}}
}

// TestAuthorIsNamedByProofOnly lets one user do everything that looks like the work of another, of whom nothing is logged;
// and hide its own work behind options that the API server does not read.
func TestAuthorIsNamedByProofOnly(t *testing.T) {
	p := newProof(t)
	p.createTables()
	if err := p.exporter.Configure(func(s *exporter.Settings) {
		s.Audit["settle"], s.Audit["window"] = "5s", "15s"
		s.Resources[0]["select"] = append(s.Resources[0]["select"].([]string), "tables.example.io")
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.doDryRuns()
	for level, namespace := range p.levels {
		p.hideBehindOptions(level, namespace)
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

const (
	dryOptions  = `{"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions","dryRun":["All"],"gracePeriodSeconds":0}`
	realOptions = `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}`
)

func eviction(name, options string) string {
	return `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + name + `"}` + options + `}`
}

// dryRuns are the requests whose dry run is in the body, or may be. NAME is that of the pod.
var dryRuns = []struct{ what, method, path, body string }{
	{"delete", http.MethodDelete, "/NAME", dryOptions},
	{"delete with options in the query", http.MethodDelete, "/NAME?gracePeriodSeconds=0", dryOptions},
	{"deletecollection", http.MethodDelete, "?labelSelector=name%3DNAME", dryOptions},
	{"eviction", http.MethodPost, "/NAME/eviction", eviction("NAME", `,"deleteOptions":{"dryRun":["All"]}`)},
	{"eviction by query", http.MethodPost, "/NAME/eviction?dryRun=All", eviction("NAME", "")},
}

// doDryRuns lets the logged user ask for dry runs before the other one does the same.
func (p *proof) doDryRuns() {
	p.t.Helper()
	pods := map[string][]string{} // names by namespace
	for level, namespace := range p.levels {
		for _, dry := range dryRuns {
			h := p.createPod(p.unlogged, namespace, p.nextName())
			p.mustHaveNone[h.Metadata.UID] = "dry run of " + dry.what + " at level " + level
			pods[namespace] = append(pods[namespace], h.Metadata.Name)
		}
	}
	p.pastCreation()
	for namespace, names := range pods {
		base := "/api/v1/namespaces/" + namespace + "/pods"
		for i, dry := range dryRuns {
			named := strings.NewReplacer("NAME", names[i])
			p.logged.mustDo(p.t, dry.method, base+named.Replace(dry.path), named.Replace(dry.body))
			if dry.method == http.MethodPost {
				p.unlogged.mustDo(p.t, http.MethodPost, base+"/"+names[i]+"/eviction", eviction(names[i], ""))
			} else {
				p.unlogged.mustDo(p.t, http.MethodDelete, base+"/"+names[i], realOptions)
			}
		}
	}
}

// hideBehindOptions lets the logged user write with options that only look like those of a dry run.
func (p *proof) hideBehindOptions(level, namespace string) {
	p.t.Helper()
	base := "/api/v1/namespaces/" + namespace + "/configmaps"
	for _, query := range []string{"?x-dryRun=All", "?fieldManager=dryRun=All", "?dryrun=All"} {
		h := p.logged.mustDo(p.t, http.MethodPost, base+query, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+p.nextName()+`"}}`)
		p.mustBeNamed[h.Metadata.UID+"/"+h.Metadata.ResourceVersion+"/added"] = "create with " + query + " at level " + level
		h = p.logged.mustDo(p.t, http.MethodDelete, base+"/"+h.Metadata.Name+"?dryRun=All", realOptions)
		p.mustBeNamed[h.Details.UID+"//deleted"] = "delete with a body and ?dryRun=All at level " + level
	}
}

// createTables creates a custom resource whose objects may have rows.
func (p *proof) createTables() {
	p.t.Helper()
	p.unlogged.mustDo(p.t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1",
		"kind":"CustomResourceDefinition","metadata":{"name":"tables.example.io"},"spec":{"group":"example.io","scope":"Namespaced",
		"names":{"plural":"tables","kind":"Table","listKind":"TableList","singular":"table"},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	for deadline := time.Now().Add(arriveWithin); ; pause(p.t, lookEvery) {
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
	for deadline := time.Now().Add(arriveWithin); ; pause(p.t, lookEvery) {
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
		pause(p.t, lookEvery)
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
