package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/await"
)

// user writes as one user, and sometimes impersonates another.
type user struct {
	a           *audited
	name        string
	as          string
	url         string // of the API server that it writes to
	contentType string
	header      http.Header // of each request
}

func (a *audited) newUser(i int) *user {
	servers := a.plane.APIServers()
	return &user{a: a, name: writer(i), url: "https://" + servers[i%len(servers)].Address()}
}

// actorName returns the identity in the form of the stream: the user, and the impersonator.
func (u *user) actorName() string {
	if u.as != "" {
		return u.as + " by " + u.name
	}
	return u.name
}

func (u *user) doRequest(ctx context.Context, method, path, body string) (int, answerHead) {
	request, err := http.NewRequestWithContext(ctx, method, u.url+path, strings.NewReader(body))
	if err != nil {
		return 0, answerHead{}
	}
	request.Header.Set("Authorization", "Bearer token-"+u.name)
	request.Header.Set("Content-Type", u.contentType)
	if u.contentType == "" {
		request.Header.Set("Content-Type", "application/json")
		if method == http.MethodPatch {
			request.Header.Set("Content-Type", "application/merge-patch+json")
		}
	}
	maps.Copy(request.Header, u.header)
	if u.as != "" {
		request.Header.Set("Impersonate-User", u.as)
		request.Header.Set("Impersonate-Group", "system:masters")
	}
	response, err := u.a.client.Do(request)
	if err != nil {
		return 0, answerHead{}
	}
	defer response.Body.Close()
	var h answerHead
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return 0, answerHead{}
	}
	h.text = text
	return response.StatusCode, h
}

// mustDo repeats a request until it succeeds or the API server rejects it. On a repetition, a conflict of a POST or a
// missing object of a DELETE means that the earlier attempt succeeded and its answer was lost.
func (u *user) mustDo(t *testing.T, method, path, body string) answerHead {
	t.Helper()
	for deadline, again := time.Now().Add(arriveWithin), false; ; again = true {
		code, h := u.doRequest(t.Context(), method, path, body)
		if code/100 == 2 || again && (code == http.StatusConflict && method == http.MethodPost || code == http.StatusNotFound && method == http.MethodDelete) {
			return h
		}
		if !isBusy(code) || time.Now().After(deadline) {
			t.Fatalf("%s %s: %d %s", method, path, code, h.text)
		}
		await.Pause(t, lookEvery)
	}
}

// isBusy reports whether an API server has not answered, or with an error of its own.
func isBusy(code int) bool {
	return code == 0 || code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

// answerHead is the decoded head of a response: an object, or a list of them.
type answerHead struct {
	Kind     string
	Metadata struct {
		Name, UID, ResourceVersion, DeletionTimestamp string
		DeletionGracePeriodSeconds                    int
		Annotations                                   map[string]string
		Finalizers                                    []string
	}
	Details struct{ UID string }
	Items   []answerHead
	Rows    []struct{ Object answerHead } // of a Table
	text    []byte
}

// unwrapTable returns the object of a Table, or the items if it is of a collection; other answers as they are.
func (h answerHead) unwrapTable(collection bool) answerHead {
	if h.Kind != "Table" {
		return h
	}
	if !collection {
		return h.Rows[0].Object
	}
	var items answerHead
	for _, row := range h.Rows {
		items.Items = append(items.Items, row.Object)
	}
	return items
}

type attributedKind struct{ path, head, spec string }

var attributedKinds = []attributedKind{
	{"/api/v1/namespaces/%s/configmaps", `"apiVersion":"v1","kind":"ConfigMap"`, `"data":{"x":"V"}`},
	{"/api/v1/namespaces/%s/secrets", `"apiVersion":"v1","kind":"Secret"`, `"stringData":{"x":"` + planted + `"}`},
	{"/apis/apps/v1/namespaces/%s/deployments", `"apiVersion":"apps/v1","kind":"Deployment"`, `"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},` +
		`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"x"}]}}}`},
	{"/api/v1/namespaces/%s/services", `"apiVersion":"v1","kind":"Service"`, `"spec":{"clusterIP":"None","ports":[{"port":80}]}`},
	{"/api/v1/namespaces/%s/pods", `"apiVersion":"v1","kind":"Pod"`, `"spec":{"containers":[{"name":"c","image":"x"}]}`},
}

// writeLoad makes random writes of all users at once, to that many names of each kind in each namespace.
func (a *audited) writeLoad(writes, names int) {
	var all sync.WaitGroup
	for i := range auditedUsers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), uint64(writes)))
			u := a.newUser(i)
			for n := range writes / auditedUsers {
				u.as = ""
				if i >= auditedUsers-2 && r.IntN(2) == 0 {
					u.as = []string{"alice", "bob"}[r.IntN(2)]
				}
				u.writeRandomly(a.t.Context(), r, n, names)
			}
		})
	}
	all.Wait()
}

// writeRandomly makes one write of a random kind.
func (u *user) writeRandomly(ctx context.Context, r *rand.Rand, n, names int) {
	kind := attributedKinds[r.IntN(len(attributedKinds))]
	base := fmt.Sprintf(kind.path, "busy-"+strconv.Itoa(r.IntN(2)))
	name := "n" + strconv.Itoa(r.IntN(names))
	item := base + "/" + name
	forged := u.forgeStamp(ctx, item)
	signed := fmt.Sprintf(`"annotations":{"signed":"%s#%d-%d"%s}`, u.actorName(), n, r.Int64(), forged)
	alone := "" // the forged stamp without a signature
	if forged != "" {
		alone = `,"annotations":{` + forged[1:] + `}`
	}
	whole := func(meta string) string {
		return "{" + kind.head + `,"metadata":{` + meta + "," + signed + "}," + kind.spec + "}"
	}
	write := func(method, path, body string, removes bool) {
		if code, h := u.doRequest(ctx, method, path, body); code/100 == 2 && !strings.Contains(path, "dryRun") {
			u.a.by.recordAnswer(u, h, removes)
			u.a.by.recordStampable(h, method, path)
		}
	}
	scalable, pod := strings.Contains(base, "deployments"), strings.HasSuffix(base, "pods")
	if pod && r.IntN(8) == 0 {
		u.bindOrEvict(ctx, r, base, name, signed)
		return
	}
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
		write("PATCH", item, `{"metadata":{"labels":{"same":"`+strconv.Itoa(r.IntN(2))+`"}`+alone+`}}`, false)
	case p < 66 && !pod:
		u.contentType = "application/apply-patch+yaml"
		write("PATCH", item+"?force=true&fieldManager=m", whole(`"name":"`+name+`"`), false)
		u.contentType = ""
	case p < 70 && scalable:
		write("PATCH", item+"/scale", `{"metadata":{"labels":null`+alone+`},"spec":{"replicas":`+strconv.Itoa(r.IntN(4))+`}}`, false)
	case p < 73 && (scalable || pod):
		write("PATCH", item+"/status", `{"metadata":{`+signed+`},"status":{"conditions":[{"type":"X","status":"True","message":"`+signed[15:30]+`"}]}}`, false)
	case p < 84 && pod && r.IntN(2) == 0:
		write("DELETE", item+"?gracePeriodSeconds=0", "", true)
	case p < 84:
		write("DELETE", item, "", true)
	case p < 88:
		write("PATCH", item, `{"metadata":{"finalizers":["example.io/x"],`+signed+`}}`, false)
	case p < 94:
		write("PATCH", item, `{"metadata":{"finalizers":null`+alone+`}}`, true)
	case p < 96:
		write("DELETE", base+"?labelSelector=g%3D"+strconv.Itoa(r.IntN(3)), "", true)
	case p < 98:
		write("PATCH", item+"?dryRun=All", `{"metadata":{`+signed+`}}`, false)
	default:
		write("PATCH", item, `{"metadata":{"resourceVersion":"1",`+signed+`}}`, false)
	}
}

// readAndWrite updates an object that it has read, with its version as the precondition.
func (u *user) readAndWrite(ctx context.Context, item, signed string, write func(method, path, body string, removes bool)) {
	if body, exists := u.readSigned(ctx, item, signed); exists {
		write("PUT", item, body, false)
	}
}

// readSigned reads an object and returns it with the user's signature.
func (u *user) readSigned(ctx context.Context, item, signed string) (body string, exists bool) {
	code, h := u.doRequest(ctx, "GET", item, "")
	var o, annotations map[string]any
	if code != http.StatusOK || json.Unmarshal(h.text, &o) != nil || json.Unmarshal([]byte("{"+signed+"}"), &annotations) != nil {
		return "", false
	}
	o["metadata"].(map[string]any)["annotations"] = annotations["annotations"]
	text, err := json.Marshal(o)
	return string(text), err == nil
}

// bindOrEvict binds a pod to a node, or evicts it. The answer does not have the object, so the UID of the request
// identifies the pod. Half of the bindings have it in the audit event too, as those of the scheduler do.
func (u *user) bindOrEvict(ctx context.Context, r *rand.Rand, base, name, signed string) {
	code, h := u.doRequest(ctx, "GET", base+"/"+name, "")
	if code != http.StatusOK {
		return
	}
	uid := h.Metadata.UID
	if r.IntN(3) > 0 {
		given := ""
		if r.IntN(2) == 0 {
			given = `"uid":"` + uid + `",`
		}
		u.doRequest(ctx, "POST", base+"/"+name+"/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"`+name+`",`+given+signed+
			`},"target":{"apiVersion":"v1","kind":"Node","name":"node-1"}}`) // a binding signs the pod
		return
	}
	code, _ = u.doRequest(ctx, "POST", base+"/"+name+"/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+name+
		`"},"deleteOptions":{"preconditions":{"uid":"`+uid+`"}}}`)
	if code/100 == 2 {
		h.Kind = "Status"
		h.Details.UID = uid
		u.a.by.recordAnswer(u, h, true)
	}
}
