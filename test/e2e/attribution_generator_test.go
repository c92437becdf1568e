package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	generatedRequests = 1500 // in the pipeline
	generatedNames    = 6    // of each kind in each namespace, so that names are used again and again
)

// generatedLevels are the namespaces, and the level at which the audit policy logs what happens in them.
// In the first one it is as printed, and most happens there.
var generatedLevels = []struct{ namespace, level string }{{"busy-0", ""}, {"busy-1", "Metadata"}, {"busy-2", "Request"}}

// generator makes requests from the grammar of the API: verbs, subresources, options in the query and in the body, content
// types, forms of the answer, impersonation, and forged material in fields that a client controls.
type generator struct {
	*audited
	alone sync.Map // a *sync.RWMutex for each object, held alone by a request whose answer does not identify the object
}

// generated is one request.
type generated struct {
	method, path, query, body string
	contentType               string
	dry                       bool // the API server stores nothing of it
	removes                   bool
	collection                bool
}

// option is a text in a request, and whether the API server makes a dry run of it.
type option struct {
	text string
	dry  bool
}

// queries are what clients write after the path. Only the key "dryRun", in any encoding, is an option for a dry run.
var queries = []option{
	{"", false}, {"", false}, {"", false}, {"fieldValidation=Ignore&pretty=true", false}, {"timeout=10s", false},
	{"x-dryRun=All", false}, {"fieldManager=dryRun%3DAll", false}, {"dryrun=All", false}, {"DRYRUN=All", false}, {"dryRun%20=All", false},
	{"dryRun=All", true}, {"%64ryRun=All", true}, {"dryRun=All&dryRun=All", true}, {"dryRun=Nothing", true}, {"dryRun=", true},
}

// deleteBodies are the bodies of deletes. A body voids the options in the query.
var deleteBodies = []option{
	{"", false}, {"", false}, {realOptions, false}, {realOptions, false}, {dryOptions, true},
	{`{"apiVersion":"v1","kind":"DeleteOptions","dryRun":["All"]}`, true},
	{`{"apiVersion":"v1","kind":"DeleteOptions","DryRun":["All"],"gracePeriodSeconds":0}`, false}, // keys are case-sensitive
	{`{"apiVersion":"v1","kind":"DeleteOptions","dryRun":["All"],"dryRun":[],"gracePeriodSeconds":0}`, false},
	{`{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background","gracePeriodSeconds":0}`, false},
	{`{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"00000000-0000-0000-0000-000000000000"}}`, false},
}

// answerForms are values of Accept.
var answerForms = []string{
	"", "", "application/json;as=Table;g=meta.k8s.io;v=v1,application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
}

// TestGeneratedRequestsNameNoWrongAuthor lets ten users send requests from the grammar of the API to the same few objects;
// nothing is logged of one of them. At first all events arrive. Then some are lost, doubled and delayed, while the exporter
// and the API server are killed. No change has another author than the user that made it, as the API server's answers show.
func TestGeneratedRequestsNameNoWrongAuthor(t *testing.T) {
	require.Long(t)
	testGenerated(t, func(with ...func(*audited, *controlplane.Options)) *audited {
		a := newAudited(t, with...)
		if err := a.exporter.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return a
	})
}

// TestGeneratedRequestsAreNamedByStamps is the same without an audit log, in which each request has a forged stamp.
func TestGeneratedRequestsAreNamedByStamps(t *testing.T) {
	require.Long(t)
	testGenerated(t, func(with ...func(*audited, *controlplane.Options)) *audited { return newStamped(t, false, with...) })
}

// TestGeneratedRequestsAreNamedByStampsAndAuditLog has both sources.
func TestGeneratedRequestsAreNamedByStampsAndAuditLog(t *testing.T) {
	require.Long(t)
	testGenerated(t, func(with ...func(*audited, *controlplane.Options)) *audited { return newStamped(t, true, with...) })
}

func testGenerated(t *testing.T, start func(...func(*audited, *controlplane.Options)) *audited) {
	t.Helper()
	requests, random := sizeOf(t, writesEnv, generatedRequests), newRandom(t)
	l := &auditRelay{random: rand.New(rand.NewPCG(random.Uint64(), 0)), mangle: passAll}
	var levels []string
	for _, l := range generatedLevels[1:] {
		levels = append(levels, "{level: "+l.level+", namespaces: ["+l.namespace+"]}")
	}
	a := start(l.connectTo, withUnlogged(levels...))
	a.newUser(0).mustDo(t, http.MethodPost, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"busy-2"}}`)
	g := &generator{audited: a}
	g.send(requests/2, random.Uint64())
	a.awaitSettled()
	v := a.judgeStream()
	stampable, stamped := a.stampedShare()
	t.Logf("%+v; of %d that can be stamped %d are named", v, stampable, stamped)
	if v.unlogged == 0 {
		t.Error("nothing happened unseen")
	}
	if !a.eventless && areTooFew(v.loggedNamed, v.logged, namesAtLeast) {
		t.Errorf("too few authors of changes by users whose requests are logged: %d of %d", v.loggedNamed, v.logged)
	}
	if a.stamped && areTooFew(stamped, stampable, stampedAtLeast) {
		t.Errorf("too few authors of changes that can be stamped: %d of %d", stamped, stampable)
	}

	l.setMangle(loseSome)
	g.send(requests/8, random.Uint64())
	if err := a.exporter.Kill(); err != nil {
		t.Fatal(err)
	}
	g.send(requests/8, random.Uint64())
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var sending sync.WaitGroup
	sending.Go(func() { g.send(requests/8, random.Uint64()) })
	if err := a.plane.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	sending.Wait()
	if err := a.plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.send(requests/8, random.Uint64())
	l.setMangle(passAll)
	a.awaitSettled()
	v = a.judgeStream()
	t.Logf("%+v", v)
	if a.stamped {
		a.verifyStamps(v)
	}
	if n := a.sumMetric(`kubecdc_unresolved_total{reason="disagree"}`); n > 0 {
		t.Errorf("stamps and audit log disagree about %v changes", n)
	}
	a.verifyNoSecrets()
}

// loseSome loses a tenth of the events, doubles a tenth, and delays a tenth.
func loseSome(l *auditRelay, all []json.RawMessage) []json.RawMessage {
	now := l.held
	l.held = nil
	for _, e := range all {
		switch l.random.IntN(10) {
		case 0:
		case 1:
			now = append(now, e, e)
		case 2:
			l.held = append(l.held, e)
		default:
			now = append(now, e)
		}
	}
	return now
}

// send lets all users send so many requests at once.
func (g *generator) send(requests int, seed uint64) {
	var all sync.WaitGroup
	for i := range auditedUsers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			u := g.newUser(i)
			for n := range requests / auditedUsers {
				if u.as = ""; i < unloggedUser && r.IntN(8) == 0 {
					u.as = pick(r, []string{"alice", "bob"})
				}
				g.sendOne(g.t.Context(), u, r, n)
			}
		})
	}
	all.Wait()
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// sendOne sends a random request and records what became of it.
func (g *generator) sendOne(ctx context.Context, u *user, r *rand.Rand, n int) {
	kind, namespace, name := pick(r, attributedKinds), generatedLevels[pick(r, []int{0, 0, 0, 1, 2})].namespace, "n"+strconv.Itoa(r.IntN(generatedNames))
	base := fmt.Sprintf(kind.path, namespace)
	forged := ""
	if r.IntN(4) == 0 {
		forged = fmt.Sprintf(`,"kubecdc-identity/uid":"%s","kubecdc-identity/user":"%s"`, "forged", writer(r.IntN(auditedUsers)))
	}
	forged += u.forgeStamp(ctx, base+"/"+name)
	signed := fmt.Sprintf(`"annotations":{"signed":"%s#%d-%d"%s}`, u.actorName(), n, r.Int64(), forged)
	u.header = http.Header{"User-Agent": {writer(r.IntN(auditedUsers))}}
	if r.IntN(10) == 0 {
		u.header.Set("Audit-ID", "00000000-0000-0000-0000-00000000000"+strconv.Itoa(r.IntN(3)))
	}
	lock, _ := g.alone.LoadOrStore(base+"/"+name, &sync.RWMutex{})
	if strings.HasSuffix(base, "pods") && r.IntN(6) == 0 {
		lock.(*sync.RWMutex).Lock()
		defer lock.(*sync.RWMutex).Unlock()
		g.evict(ctx, u, r, base, name)
		return
	}
	lock.(*sync.RWMutex).RLock()
	defer lock.(*sync.RWMutex).RUnlock()
	q, possible := g.choose(ctx, u, r, base, name, kind.head, kind.spec, signed)
	if !possible {
		return
	}
	if form := pick(r, answerForms); form != "" {
		u.header.Set("Accept", form)
	}
	u.contentType = q.contentType
	code, h := u.doRequest(ctx, q.method, q.path+join(q.query), q.body)
	u.contentType = ""
	switch {
	case isUnknown(code):
		g.by.recordUnknown(base, name)
	case code/100 == 2 && !q.dry:
		h = h.unwrapTable(q.collection)
		g.by.recordAnswer(u, h, q.removes)
		g.by.recordStampable(h, q.method, q.path)
	}
}

func join(query string) string {
	if query == "" {
		return ""
	}
	return "?" + query
}

// isUnknown reports whether a request may have been carried out although its answer does not show it.
func isUnknown(code int) bool { return isBusy(code) && code != http.StatusTooManyRequests }

// choose makes a random request to an object or to its collection.
func (g *generator) choose(ctx context.Context, u *user, r *rand.Rand, base, name, head, spec, signed string) (q generated, possible bool) {
	item, query := base+"/"+name, pick(r, queries)
	whole := func(meta string) string {
		return "{" + head + `,"metadata":{` + meta + "," + signed + "}," + spec + "}"
	}
	q = generated{method: http.MethodPatch, path: item, query: query.text, dry: query.dry, body: `{"metadata":{` + signed + `}}`}
	switch p := r.IntN(100); {
	case p < 22:
		q.method, q.path, q.body = http.MethodPost, base, whole(`"name":"`+name+`"`)
	case p < 28:
		q.method, q.path, q.body = http.MethodPost, base, whole(`"generateName":"g-","labels":{"g":"`+strconv.Itoa(r.IntN(3))+`"}`)
	case p < 40:
		q.method = http.MethodPut
		q.body, possible = u.readSigned(ctx, item, signed)
		return q, possible
	case p < 56: // a merge patch
	case p < 60:
		q.contentType = "application/strategic-merge-patch+json"
	case p < 63:
		q.contentType = "application/json-patch+json"
		q.body = `[{"op":"add","path":"/metadata/labels","value":{"same":"` + strconv.Itoa(r.IntN(2)) + `"}}]`
	case p < 68 && !strings.HasSuffix(base, "pods"):
		q.contentType, q.body = "application/apply-patch+yaml", whole(`"name":"`+name+`"`)
		q.query = strings.Trim("force=true&fieldManager=m&"+strings.ReplaceAll(query.text, "fieldManager", "x"), "&")
	case p < 72 && strings.HasSuffix(base, "deployments"):
		q.path, q.body = item+"/scale", `{"spec":{"replicas":`+strconv.Itoa(r.IntN(4))+`}}`
	case p < 76 && (strings.HasSuffix(base, "deployments") || strings.HasSuffix(base, "pods")):
		q.path = item + "/status"
		q.body = `{"status":{"conditions":[{"type":"X","status":"True","message":"` + strconv.Itoa(r.IntN(1000)) + `"}]}}`
	case p < 80:
		q.body = `{"metadata":{"finalizers":["example.io/x"],` + signed + `}}`
	case p < 85:
		q.body, q.removes = `{"metadata":{"finalizers":null}}`, true
	case p < 90 && strings.HasSuffix(base, "pods"):
		q.method, q.path = http.MethodPost, item+"/binding"
		q.body = `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"` + name + `",` + signed + `},"target":{"apiVersion":"v1","kind":"Node","name":"node-1"}}`
	case p < 96:
		return q.toDelete(pick(r, deleteBodies)), true
	default:
		q.path, q.collection = base, true
		q.query = strings.Trim("labelSelector=g%3D"+strconv.Itoa(r.IntN(3))+"&"+query.text, "&")
		return q.toDelete(pick(r, deleteBodies)), true
	}
	return q, true
}

// toDelete makes a delete of a request, with options in the body.
func (q generated) toDelete(options option) generated {
	q.method, q.body, q.removes = http.MethodDelete, options.text, true
	if options.text != "" {
		q.dry = options.dry
	}
	return q
}

// evict evicts a pod by its name, half of the time with its UID too. The answer does not show which pod it was, so no other
// request to the name may run meanwhile.
func (g *generator) evict(ctx context.Context, u *user, r *rand.Rand, base, name string) {
	code, h := u.doRequest(ctx, http.MethodGet, base+"/"+name, "")
	if code != http.StatusOK {
		return
	}
	query := pick(r, queries)
	options := pick(r, []option{{"", false}, {`,"deleteOptions":{"preconditions":{"uid":"` + h.Metadata.UID + `"}}`, false}, {`,"deleteOptions":{"dryRun":["All"]}`, true}})
	code, _ = u.doRequest(ctx, http.MethodPost, base+"/"+name+"/eviction"+join(query.text), eviction(name, options.text))
	switch {
	case isUnknown(code):
		g.by.recordUnknown(base, name)
	case code/100 == 2 && !query.dry && !options.dry:
		h.Kind, h.Details.UID = "Status", h.Metadata.UID
		g.by.recordAnswer(u, h, true)
	}
}
