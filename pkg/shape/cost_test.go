package shape

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

const width = 5000

// wideObject returns an object with so many numbers that decoding it makes thousands of allocations.
func wideObject(n int) string {
	numbers := strings.Repeat("1000,", width-1) + "1000"
	return fmt.Sprintf(`{"kind":"K","metadata":{"name":"a","uid":"u","resourceVersion":"%d","finalizers":[%s]},"data":{"a":"x"},"spec":{"n":%d}}`, n, numbers, n)
}

// countAllocations counts the allocations for one change of a wide object.
func countAllocations(t *testing.T, p Policy, resource event.Resource) float64 {
	t.Helper()
	r, err := compileRule(p, Options{Key: []byte("0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	last, after := []byte(wideObject(1)), []byte(wideObject(2))
	whole := *updatedTo(resource, "")
	whole.After = after
	var c event.Change
	emitted := true
	of := &objectFlags{}
	count := testing.AllocsPerRun(5, func() {
		c = whole
		_, emitted = r.shapeChange(&c, last, of)
	})
	if !emitted || c.Withheld != "" {
		t.Errorf("%+v: emitted %v, withheld %q; want a change that is shaped completely", p, emitted, c.Withheld)
	}
	return count
}

func TestARuleWithoutAFilterNeverDecodesToAMap(t *testing.T) {
	if n := countAllocations(t, Policy{Filter: "object.spec.n == 2"}, deployment); n < width {
		t.Fatalf("a filter that looks into an object of %d numbers makes %.0f allocations: too few to detect decoding", width, n)
	}
	for name, c := range map[string]struct {
		policy   Policy
		resource event.Resource
	}{
		"default":                {Policy{}, deployment},
		"default, of a Secret":   {Policy{}, secret},
		"hmac, of a Secret":      {Policy{Redact: HMAC}, secret},
		"drop, of a Secret":      {Policy{Redact: Drop}, secret},
		"redactPaths":            {Policy{RedactPaths: []string{"spec.n"}}, deployment},
		"before":                 {Policy{Before: "full"}, deployment},
		"changed: paths":         {Policy{Changed: changedPaths}, deployment},
		"changed: values":        {Policy{Changed: ChangedValues}, deployment},
		"onlyIfChanged":          {Policy{OnlyIfChanged: []string{"spec.n"}}, deployment},
		"ignoreChanges":          {Policy{IgnoreChanges: []string{"spec.m"}}, deployment},
		"fields.keep":            {Policy{Fields: Fields{Keep: []string{"spec"}}}, deployment},
		"fields.drop":            {Policy{Fields: Fields{Drop: []string{"spec.m", "status"}}}, deployment},
		"a filter over a change": {Policy{Filter: `change.class != "status"`}, deployment},
	} {
		if n := countAllocations(t, c.policy, c.resource); n > width/10 {
			t.Errorf("%s: %.0f allocations for an object of %d numbers", name, n, width)
		}
	}
}

func TestDefaultRuleDoesNotCopyOtherObjects(t *testing.T) {
	if n := countAllocations(t, Policy{}, deployment); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
	r, err := compileRule(Policy{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := updatedTo(deployment, newObject(`{"replicas":1e0}`, "{}"))
	before := c.After
	if _, keep := r.shapeChange(c, nil, &objectFlags{}); !keep || &c.After[0] != &before[0] {
		t.Errorf("the change became %+v", c)
	}
}

func BenchmarkDefaultRule(b *testing.B) {
	secretOf := func(bytes int) string { // two values, as in a certificate with its key
		value := `"` + strings.Repeat("c2Vj", bytes/8) + `"`
		return `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","uid":"u"},"data":{"a":` + value + `,"b":` + value + `},"type":"Opaque"}`
	}
	applied, err := json.Marshal(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"x":[` + strings.Repeat(`"yyyyyyyyyyyyyyyy",`, 150) + `1]}}`)
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]*event.Change{
		"applied-3KB": updatedTo(deployment, `{"kind":"Deployment","metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":`+string(applied)+`}},"spec":{"x":"`+strings.Repeat("y", 3000)+`"}}`),
		"any-8KB":     updatedTo(deployment, newObject(`{"x":"`+strings.Repeat("y", 8000)+`"}`, "{}")),
		"Secret-3KB":  updatedTo(secret, secretOf(3000)),
		"Secret-8KB":  updatedTo(secret, secretOf(8000)),
	} {
		b.Run(name, func(b *testing.B) {
			r, err := compileRule(Policy{}, Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(c.After)))
			b.ReportAllocs()
			var one event.Change
			for b.Loop() {
				one = *c
				if _, keep := r.shapeChange(&one, nil, &objectFlags{}); !keep || one.Withheld != "" {
					b.Fatal(one.Withheld)
				}
			}
		})
	}
}

// podLife returns the states of a Pod with two containers from its creation to its end, as the API server sends them without
// managedFields: it starts, crashes once, gets an annotation twice, and is deleted.
func podLife() (states [][]byte) {
	container := func(name string) string {
		env := `{"name":"POD_NAME","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}}}`
		for i := range 10 {
			env += fmt.Sprintf(`,{"name":"SETTING_%d","value":"https://%s-%d.shop.svc.cluster.local:8443/v1"}`, i, name, i)
		}
		return `{"name":"` + name + `","image":"registry.example.com/shop/` + name + `:v1.27.3","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],"env":[` + env +
			`],"resources":{"limits":{"cpu":"500m","memory":"512Mi"},"requests":{"cpu":"100m","memory":"256Mi"}},"volumeMounts":[{"name":"config","readOnly":true,"mountPath":"/etc/config"},` +
			`{"name":"kube-api-access-x7k2p","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"livenessProbe":{"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"},` +
			`"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}`
	}
	condition := func(name, status, reason string, second int) string {
		return fmt.Sprintf(`{"type":%q,"observedGeneration":1,"status":%q,"lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:%02dZ"%s}`, name, status, second, reason)
	}
	unready := `,"reason":"ContainersNotReady","message":"containers with unready status: [web log]"`
	const waiting = `{"waiting":{"reason":"ContainerCreating"}}`
	running := func(second int) string {
		return fmt.Sprintf(`{"running":{"startedAt":"2026-01-02T03:04:%02dZ"}}`, second)
	}
	status := func(name, state, last string, ready bool, restarts int) string {
		return fmt.Sprintf(`{"name":%q,"state":%s,"lastState":%s,"ready":%t,"restartCount":%d,"image":"registry.example.com/shop/%s:v1.27.3",`+
			`"imageID":"registry.example.com/shop/%s@sha256:0b159cd1ee1203dad901967ac55eee18c24da84ba3be384690304be93538bea8","containerID":"containerd://a4b%d","started":%t}`, name, state, last, ready, restarts, name, name, restarts, ready)
	}
	version := 4711
	add := func(meta, spec, conditions, rest string) {
		version++
		states = append(states, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","generateName":"web-7d4b9c6f5-","namespace":"n","uid":"u","resourceVersion":"%d","generation":1,`+
			`"creationTimestamp":"2026-01-02T03:04:05Z"%s,"labels":{"app":"web","pod-template-hash":"7d4b9c6f5"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d4b9c6f5",`+
			`"uid":"r","controller":true,"blockOwnerDeletion":true}]},"spec":{"volumes":[{"name":"config","configMap":{"name":"web","defaultMode":420}}],"containers":[%s,%s]%s,"restartPolicy":"Always",`+
			`"serviceAccountName":"web","tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}]},"status":{%s"conditions":[%s]%s}}`,
			version, meta, container("web"), container("log"), spec, `"observedGeneration":1,"phase":"Pending",`, conditions, rest))
	}
	const node = `,"nodeName":"ip-10-0-1-23.eu-central-1.compute.internal"`
	scheduled := condition("PodScheduled", "True", "", 6)
	both := func(initialized, ready string, second int) string {
		return condition("PodReadyToStartContainers", initialized, "", map[string]int{"True": 8, "False": 7}[initialized]) + "," + condition("Initialized", "True", "", 6) + "," +
			condition("Ready", map[bool]string{true: "True", false: "False"}[ready == ""], ready, second) + "," +
			condition("ContainersReady", map[bool]string{true: "True", false: "False"}[ready == ""], ready, second) + "," + scheduled
	}
	rest := func(web, log string) string {
		return `,"hostIP":"10.0.1.23","podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"}],"startTime":"2026-01-02T03:04:06Z","containerStatuses":[` + log + "," + web + `],"qosClass":"Burstable"`
	}
	add("", "", "", "")
	add("", node, scheduled, "")
	add("", node, both("False", unready, 7), rest(status("web", waiting, "{}", false, 0), status("log", waiting, "{}", false, 0)))
	add("", node, both("True", unready, 8), rest(status("web", waiting, "{}", false, 0), status("log", running(8), "{}", true, 0)))
	add("", node, both("True", "", 9), rest(status("web", running(9), "{}", true, 0), status("log", running(8), "{}", true, 0)))
	const last = `{"terminated":{"exitCode":1,"reason":"Error","startedAt":"2026-01-02T03:04:10Z","finishedAt":"2026-01-02T03:04:11Z","containerID":"containerd://a4b0"}}`
	log := status("log", running(8), "{}", true, 0)
	add("", node, both("True", unready, 11), rest(status("web", last, "{}", false, 0), log))
	add("", node, both("True", "", 12), rest(status("web", running(12), last, true, 1), log))
	for _, annotations := range []string{`,"annotations":{"example.com/seen":"1"}`, `,"annotations":{"example.com/seen":"2"}`, `,"deletionTimestamp":"2026-01-02T03:05:05Z","deletionGracePeriodSeconds":30,"annotations":{"example.com/seen":"2"}`} {
		add(annotations, node, both("True", "", 12), rest(status("web", running(12), last, true, 1), log))
	}
	return states
}

// BenchmarkChanged has the life of a Pod through a rule and the native format, and the bytes of what it lists as changed.
// The ratio of values to paths is that of two runs side by side: -count=10.
func BenchmarkChanged(b *testing.B) {
	states := podLife()
	for _, changed := range []string{changedNone, changedPaths, ChangedValues} {
		b.Run(changed, func(b *testing.B) {
			r, err := compileRule(Policy{Changed: changed}, Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var record []byte
			listed := 0
			for b.Loop() {
				listed = 0
				for i := range states[1:] {
					c := *updatedTo(event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, "")
					c.After = states[i+1]
					if _, keep := r.shapeChange(&c, states[i], &objectFlags{}); !keep || c.Withheld != "" {
						b.Fatal(c.Withheld)
					}
					listed += len(c.Changed)
					record = format.AppendJSON(record[:0], &c)
				}
			}
			b.ReportMetric(float64(listed)/float64(len(states)-1), "listed-B/change")
		})
	}
}
