package shape

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
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
