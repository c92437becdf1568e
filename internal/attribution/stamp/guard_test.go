package stamp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// memory is what a guard keeps over restarts, and what it reports.
type memory struct {
	state  string
	losses []string
}

func (m *memory) newGuard(grace time.Duration, list func(ctx context.Context, group, version, resource, name string) ([]byte, error)) *Guard {
	g := NewGuard(Options{
		Grace: grace, List: list, Logger: slog.New(slog.DiscardHandler), ClockSkew: func() time.Duration { return 0 },
		IsNotServed: func(err error) bool { return errors.Is(err, errNotServed) },
		Selected:    func() ([]event.Resource, error) { return []event.Resource{configMapsResource}, nil },
		Stored:      func() (string, error) { return m.state, nil },
		Store:       func(_ context.Context, state string) error { m.state = state; return nil },
		RecordGap: func(_ context.Context, _ time.Time, reason string) error {
			m.losses = append(m.losses, reason)
			return nil
		},
	})
	if err := g.loadState(); err != nil {
		panic(err)
	}
	return g
}

var (
	configMapsResource = event.Resource{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"}
	podsResource       = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
)

func (c *cluster) list(_ context.Context, group, version, resource, name string) ([]byte, error) {
	path := "/apis/" + group + "/" + version + "/" + resource
	if name != "" {
		path += "?fieldSelector=metadata.name=" + name
	}
	return c.mustSend("alice", "GET", path, "").text, nil
}

// write makes a version of a ConfigMap.
func (c *cluster) write() string {
	c.t.Helper()
	return c.mustSend("bob", "POST", configMaps, `{"metadata":{"generateName":"g-"}}`).Metadata.ResourceVersion
}

func mustCheck(t *testing.T, g *Guard) {
	t.Helper()
	if err := g.check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func verifyVerdict(t *testing.T, g *Guard, what, version string, want Verdict) {
	t.Helper()
	if got := g.Proof().Judge(configMapsResource, version); got != want {
		t.Errorf("%s: %v, want %v; %+v", what, got, want, g.Proof())
	}
}

func verifyCode(t *testing.T, g *Guard, what string, want condition.Code) {
	t.Helper()
	if got := g.Condition(); got.Code != want {
		t.Errorf("%s: the condition is %q (%s), want %q", what, got.Code, got.CauseText(), want)
	}
}

// TestOnlyVersionsUnderThePrintedPolicyAreProven: on a real API server, with each way to weaken the policy.
func TestOnlyVersionsUnderThePrintedPolicyAreProven(t *testing.T) {
	c, m := startCluster(t), &memory{}
	g := m.newGuard(0, c.list)
	early := c.write()
	verifyVerdict(t, g, "before the first check", early, NotKnown)
	verifyCode(t, g, "before the first check", condition.StampsUnchecked)
	mustCheck(t, g)
	verifyVerdict(t, g, "without a policy", early, NotInForce)
	verifyCode(t, g, "without a policy", condition.StampsUnproven)

	c.applyPolicy("configmaps")
	unknown := c.write()
	mustCheck(t, g)
	verifyVerdict(t, g, "before it was found to be in force", unknown, NotInForce)
	verifyCode(t, g, "with the policy", "")
	safe := c.write()
	verifyVerdict(t, g, "after the last check", safe, NotKnown)
	mustCheck(t, g)
	verifyVerdict(t, g, "in force", safe, InForce)
	if got := g.Proof().Judge(podsResource, safe); got != NotInForce {
		t.Errorf("a resource that the policy does not select: %v", got)
	}
	if len(m.losses) > 0 {
		t.Errorf("losses without a reason: %q", m.losses)
	}
	// The same policy, found by another process, was in force all the time.
	away := c.write()
	g = m.newGuard(time.Hour, c.list)
	mustCheck(t, g)
	verifyVerdict(t, g, "over a restart", away, InForce)

	g = m.newGuard(0, c.list)
	mustCheck(t, g)
	c.verifyShortWeakness(g, policiesPath, `{"spec":{"failurePolicy":"Ignore"}}`, `{"spec":{"failurePolicy":"Fail"}}`)
	c.verifyShortWeakness(g, bindingsPath, `{"spec":{"matchResources":{"objectSelector":{"matchLabels":{"a":"b"}}}}}`, `{"spec":{"matchResources":null}}`)
	patch := func(path, body string) func() {
		return func() { c.mustSend("alice", "PATCH", path+"/"+PolicyName, body) }
	}
	for what, weaken := range map[string]func(){
		"a selector of namespaces":  patch(policiesPath, `{"spec":{"matchConstraints":{"namespaceSelector":{"matchLabels":{"a":"b"}}}}}`),
		"a selector of objects":     patch(policiesPath, `{"spec":{"matchConstraints":{"objectSelector":{"matchLabels":{"a":"b"}}}}}`),
		"excluded resources":        patch(policiesPath, `{"spec":{"matchConstraints":{"excludeResourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["UPDATE"],"resources":["configmaps"]}]}}}`),
		"another match policy":      patch(policiesPath, `{"spec":{"matchConstraints":{"matchPolicy":"Equivalent"}}}`),
		"failures are ignored":      patch(policiesPath, `{"spec":{"failurePolicy":"Ignore"}}`),
		"no reinvocation":           patch(policiesPath, `{"spec":{"reinvocationPolicy":"Never"}}`),
		"a condition":               patch(policiesPath, `{"spec":{"matchConditions":[{"name":"x","expression":"request.userInfo.username != 'mallory'"}]}}`),
		"a variable":                patch(policiesPath, `{"spec":{"variables":[{"name":"before","expression":"''"},{"name":"after","expression":"''"},{"name":"stamp","expression":"''"}]}}`),
		"another mutation":          patch(policiesPath, `{"spec":{"mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'test', path: '/kind', value: 'x'}]"}}]}}`),
		"creates only":              patch(policiesPath, `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["*"],"operations":["CREATE"],"resources":["configmaps","configmaps/*"]}]}}}`),
		"no subresources":           patch(policiesPath, `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["*"],"operations":["*"],"resources":["configmaps"]}]}}}`),
		"one name":                  patch(policiesPath, `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["*"],"operations":["*"],"resources":["configmaps","configmaps/*"],"resourceNames":["x"]}]}}}`),
		"a binding of some objects": patch(bindingsPath, `{"spec":{"matchResources":{"objectSelector":{"matchLabels":{"a":"b"}}}}}`),
		"no binding":                func() { c.mustSend("alice", "DELETE", bindingsPath+"/"+PolicyName, "") },
		"no policy":                 func() { c.mustSend("alice", "DELETE", policiesPath+"/"+PolicyName, "") },
	} {
		m.losses = nil
		last := c.write()
		mustCheck(t, g)
		verifyVerdict(t, g, "before "+what, last, InForce)
		weaken()
		after := c.write()
		mustCheck(t, g)
		verifyVerdict(t, g, "after "+what, after, NotInForce)
		verifyVerdict(t, g, "before, after "+what, last, InForce)
		verifyCode(t, g, what, condition.StampsUnproven)
		if len(m.losses) == 0 || !strings.Contains(m.losses[0], "after version ") {
			t.Errorf("%s: losses %q", what, m.losses)
		}
		c.removePolicy()
		c.applyPolicy("configmaps")
		mustCheck(t, g)
		verifyVerdict(t, g, "again after "+what, after, NotInForce)
		verifyCode(t, g, "again after "+what, "")
		if last := m.losses[len(m.losses)-1]; !strings.Contains(last, "until version ") {
			t.Errorf("%s: the end of the gap is missing: %q", what, m.losses)
		}
	}
}

// verifyShortWeakness weakens and restores one of the objects between two checks: both find it as printed.
func (c *cluster) verifyShortWeakness(g *Guard, path, weaken, restore string) {
	c.t.Helper()
	c.mustSend("alice", "PATCH", path+"/"+PolicyName, weaken)
	meanwhile := c.write()
	c.mustSend("alice", "PATCH", path+"/"+PolicyName, restore)
	if err := g.check(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	if got := g.Proof().Judge(configMapsResource, meanwhile); got != NotInForce || g.state.Since == "" {
		c.t.Errorf("weakened for a moment by %s: %v, %+v", weaken, got, g.state)
	}
}

// TestTheRightsOfExporterRBACSuffice: to list each of the two objects by its name, and nothing else of their kinds.
func TestTheRightsOfExporterRBACSuffice(t *testing.T) {
	c := startCluster(t)
	c.applyPolicy("configmaps")
	role := `{"metadata":{"name":"stamps"},"rules":[
{"apiGroups":["admissionregistration.k8s.io"],"resources":["mutatingadmissionpolicies","mutatingadmissionpolicybindings"],"resourceNames":["kubecdc-stamp"],"verbs":["list"]},
{"apiGroups":["apiregistration.k8s.io"],"resources":["apiservices"],"verbs":["list"]}]}`
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	c.mustSend("alice", "POST", rbac+"clusterroles", role)
	c.mustSend("alice", "POST", rbac+"clusterrolebindings", `{"metadata":{"name":"stamps"},"subjects":[{"kind":"User","name":"`+reader+
		`"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"stamps"}}`)
	client, err := apiserver.NewClient(&rest.Config{Host: c.URL(), BearerToken: tokenOf(reader), TLSClientConfig: rest.TLSClientConfig{CAFile: c.CAFile()}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	m := &memory{}
	g := m.newGuard(0, client.ListText)
	for deadline := time.Now().Add(time.Minute); g.Condition().Code != "" || g.state.Since == ""; time.Sleep(50 * time.Millisecond) {
		if mustCheck(t, g); time.Now().After(deadline) {
			t.Fatal(g.Condition().CauseText())
		}
	}
	version := c.write()
	mustCheck(t, g)
	verifyVerdict(t, g, "with these rights", version, InForce)
	if _, err := client.ListText(t.Context(), admissionGroup, admissionVersion, policies, ""); err == nil {
		t.Error("the rights are wider than needed, so the test proves nothing")
	}
}

// removePolicy deletes policy and binding, if there are any, and waits until the API server has noticed.
func (c *cluster) removePolicy() {
	c.t.Helper()
	c.send("alice", "DELETE", bindingsPath+"/"+PolicyName, "")
	c.send("alice", "DELETE", policiesPath+"/"+PolicyName, "")
	c.awaitStamps(false)
}

// TestAPolicyThatWasRecreatedIsANewOne: it was away, however short.
func TestAPolicyThatWasRecreatedIsANewOne(t *testing.T) {
	c, m := startCluster(t), &memory{}
	c.applyPolicy("configmaps")
	g := m.newGuard(0, c.list)
	mustCheck(t, g)
	c.removePolicy()
	meanwhile := c.write()
	c.applyPolicy("configmaps")
	for _, next := range []*Guard{g, m.newGuard(0, c.list)} {
		m.losses = nil
		mustCheck(t, next)
		verifyVerdict(t, next, "while it was away", meanwhile, NotInForce)
		if len(m.losses) == 0 {
			t.Error("no loss")
		}
		after := c.write()
		mustCheck(t, next)
		verifyVerdict(t, next, "afterwards", after, InForce)
		m.state = strings.Replace(m.state, "/1", "/0", 1) // another generation, for the next one
	}
	m.state = ""
	young := m.newGuard(time.Hour, c.list)
	mustCheck(t, young)
	verifyCode(t, young, "a policy that is younger than the grace", condition.StampsUnproven)
	version := c.write()
	mustCheck(t, young)
	verifyVerdict(t, young, "a policy that is younger than the grace", version, NotInForce)
	restarted := m.newGuard(time.Hour, c.list)
	mustCheck(t, restarted)
	verifyVerdict(t, restarted, "the same after a restart", version, NotInForce)
}

var errNotServed = errors.New("the server could not find the requested resource")

// TestAnAPIServerWithoutThePolicyEndsTheProof: one of several answers that it does not have such policies. Nothing counts
// from the last list before that, until none has answered so for the grace, over a restart too.
func TestAnAPIServerWithoutThePolicyEndsTheProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Minute
		var version int64
		older := false
		list := func(_ context.Context, _, _, resource, _ string) ([]byte, error) {
			if version++; older && resource != apiServices {
				return nil, fmt.Errorf("list: %w", errNotServed)
			}
			return printedList(resource, version), nil
		}
		m := &memory{}
		g := m.newGuard(grace, list)
		now := func() string { return strconv.FormatInt(version, 10) }
		mustCheck(t, g) // they were written long before
		mustCheck(t, g)
		before := strconv.FormatInt(version-1, 10)
		verifyVerdict(t, g, "before", before, InForce)
		older = true
		mustCheck(t, g)
		meanwhile := now()
		verifyVerdict(t, g, "answered by the older one", meanwhile, NotInForce)
		verifyVerdict(t, g, "before it answered", before, InForce)
		verifyCode(t, g, "answered by the older one", condition.StampsUnproven)
		if len(m.losses) != 1 || !strings.Contains(m.losses[0], "does not have mutatingadmissionpolicies") {
			t.Errorf("losses: %q", m.losses)
		}
		time.Sleep(grace)
		mustCheck(t, g) // it answers again
		older = false
		time.Sleep(grace - time.Second)
		for _, next := range []*Guard{g, m.newGuard(grace, list)} {
			mustCheck(t, next)
			verifyVerdict(t, next, "shortly after", strconv.FormatInt(version-1, 10), NotInForce)
			verifyCode(t, next, "shortly after", condition.StampsUnproven)
		}
		time.Sleep(time.Second)
		for _, next := range []*Guard{g, m.newGuard(grace, list)} {
			mustCheck(t, next)
			mustCheck(t, next)
			verifyVerdict(t, next, "answered by the older one, later", meanwhile, NotInForce)
			verifyVerdict(t, next, "afterwards", strconv.FormatInt(version-1, 10), InForce)
			verifyCode(t, next, "afterwards", "")
		}
	})
}

// lists are the answers of an API server.
type lists struct {
	version  int
	services string
	err      error
}

func (l *lists) list(_ context.Context, _, _, resource, _ string) ([]byte, error) {
	if resource == apiServices {
		return []byte(`{"items":[` + l.services + `]}`), l.err
	}
	return fmt.Appendf(nil, `{"metadata":{"resourceVersion":"%d"},"items":[]}`, l.version), l.err
}

// TestUnreadablePolicyProvesNothing: neither that it is there nor that it is not.
func TestUnreadablePolicyProvesNothing(t *testing.T) {
	l, m := &lists{version: 7, err: errors.New("forbidden")}, &memory{}
	g := m.newGuard(0, l.list)
	mustCheck(t, g)
	verifyVerdict(t, g, "unreadable", "7", NotKnown)
	verifyCode(t, g, "unreadable", condition.StampsUnchecked)
	l.err = nil
	mustCheck(t, g)
	verifyVerdict(t, g, "absent", "7", NotInForce)
	verifyVerdict(t, g, "later", "8", NotKnown)
	verifyVerdict(t, g, "not a number", "x", NotInForce)
}

// TestGroupsOfOtherServersAreNotProven: the admission of kube-apiserver does not see their writes.
func TestGroupsOfOtherServersAreNotProven(t *testing.T) {
	all := []resourceRule{{Operations: []string{"*"}, APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}}}
	p := &Proof{intervals: []interval{{"1", "9", all}}, unproven: map[string]string{"things.example.io": ""}, checked: "9"}
	for _, c := range []struct {
		group, version string
		want           Verdict
	}{
		{"apps", "5", InForce}, {"apps", "1", NotInForce}, {"apps", "9", InForce}, {"apps", "10", NotKnown}, {"things.example.io", "5", NotInForce},
	} {
		if got := p.Judge(event.Resource{Group: c.group, Resource: "x"}, c.version); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	l, m := &lists{version: 7, services: `{"spec":{"group":"apps","version":"v1"}},{"spec":{"group":"things.example.io","service":{"name":"s"}}}`}, &memory{}
	g := m.newGuard(0, l.list)
	mustCheck(t, g)
	if _, unproven := g.unproven["things.example.io"]; !unproven || len(g.unproven) != 1 {
		t.Errorf("groups of other servers: %v", g.unproven)
	}
}

// TestTypesThatAreNotStampedAreNamed, with the reason, and nothing is believed of them, whatever else the policy selects.
func TestTypesThatAreNotStampedAreNamed(t *testing.T) {
	autoscalers := event.Resource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers", Kind: "HorizontalPodAutoscaler"}
	m, version := &memory{}, int64(7)
	g := m.newGuard(0, func(_ context.Context, _, _, resource, _ string) ([]byte, error) {
		return printedList(resource, version), nil
	})
	g.options.Selected = func() ([]event.Resource, error) { return []event.Resource{configMapsResource, autoscalers}, nil }
	mustCheck(t, g)
	version = 9
	mustCheck(t, g)
	verifyCode(t, g, "with HorizontalPodAutoscalers", condition.StampsUnproven)
	if cause := g.Condition().CauseText(); !strings.Contains(cause, "horizontalpodautoscalers.autoscaling is not stamped: autoscaling/v1") || strings.Contains(cause, "configmaps") {
		t.Errorf("the cause: %s", cause)
	}
	verifyVerdict(t, g, "others", "8", InForce)
	if got := g.Proof().Judge(autoscalers, "8"); got != NotInForce {
		t.Errorf("a type that must not be stamped: %v", got)
	}
}

// TestALaterVersionOfATypeProvesNothing: no test has stamped a write through it, so the policy leaves it alone, and such a
// write may bring a stamp of its own. The condition names the version.
func TestALaterVersionOfATypeProvesNothing(t *testing.T) {
	l, m := &lists{version: 7, services: `{"spec":{"group":"","version":"v1"}},{"spec":{"group":"","version":"v2"}},{"spec":{"group":"example.io","version":"v9"}}`}, &memory{}
	g := m.newGuard(0, l.list)
	mustCheck(t, g)
	if why, unproven := g.unproven[""]; !unproven || why != "v2" || len(g.unproven) != 1 {
		t.Errorf("unproven groups: %v", g.unproven)
	}
}

// TestAHangingListDelaysTheProof: while it hangs, nothing newer is proven, and nothing that was proven is lost. Afterwards
// the policy has been in force all the time.
func TestAHangingListDelaysTheProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var version atomic.Int64
		var hangs atomic.Bool
		version.Store(7)
		list := func(ctx context.Context, _, _, resource, _ string) ([]byte, error) {
			if hangs.Load() && resource != apiServices {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return printedList(resource, version.Load()), nil
		}
		m := &memory{}
		g := m.newGuard(0, list)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		checkSoon := func() {
			g.RequestCheck()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		checkSoon()
		version.Store(8)
		checkSoon()
		verifyVerdict(t, g, "before", "8", InForce)
		hangs.Store(true)
		g.RequestCheck()
		time.Sleep(checkTimeout + time.Second)
		synctest.Wait()
		verifyCode(t, g, "hanging", condition.StampsUnchecked)
		verifyVerdict(t, g, "hanging, known before", "8", InForce)
		verifyVerdict(t, g, "hanging", "9", NotKnown)
		hangs.Store(false)
		version.Store(10)
		time.Sleep(checkTimeout)
		checkSoon()
		verifyCode(t, g, "afterwards", "")
		verifyVerdict(t, g, "afterwards", "9", InForce)
		if len(m.losses) > 0 {
			t.Errorf("gaps: %q", m.losses)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// printedList is a list of the printed policy, or of its binding, at a version.
func printedList(resource string, version int64) []byte {
	var spec any = map[string]any{"policyName": PolicyName}
	switch resource {
	case apiServices:
		return fmt.Appendf(nil, `{"metadata":{"resourceVersion":"%d"},"items":[]}`, version)
	case policies:
		all := []string{"*"}
		spec = map[string]any{
			"failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded", "matchConditions": matchConditions, "variables": variables,
			"matchConstraints": map[string]any{"matchPolicy": "Exact", "resourceRules": []map[string]any{
				{"apiGroups": all, "apiVersions": all, "operations": all, "resources": []string{"*/*"}},
			}},
			"mutations": []map[string]any{{"patchType": "JSONPatch", "jsonPatch": map[string]any{"expression": mutation}}},
		}
	}
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.FormatInt(version, 10)},
		"items":    []any{map[string]any{"metadata": map[string]any{"uid": resource, "generation": 1, "creationTimestamp": "1999-01-01T00:00:00Z"}, "spec": spec}},
	})
	if err != nil {
		panic(err)
	}
	return text
}
