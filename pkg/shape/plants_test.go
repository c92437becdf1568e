package shape_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/cespare/xxhash/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
)

// encodings are the forms in which a value may occur.
var encodings = []func(string) string{
	func(v string) string { return v },
	func(v string) string { return base64.StdEncoding.EncodeToString([]byte(v)) },
	func(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v + "?>")) },
	func(v string) string {
		return base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(v))))
	},
	func(v string) string { return hex.EncodeToString([]byte(v)) },
	func(v string) string { return strings.ToUpper(hex.EncodeToString([]byte(v))) },
	gzipBase64,
	func(v string) string { return url.QueryEscape("=" + v + "&%") },
	func(v string) string { return toJSON(map[string]string{"token": v}) },
	func(v string) string { return toJSON(toJSON(map[string]string{"token": v})) },
	codePoints,
}

var packer = gzip.NewWriter(nil) // expensive to create, so it is reused

func gzipBase64(v string) string {
	var b bytes.Buffer
	packer.Reset(&b)
	_, _ = packer.Write([]byte(v)) // writing to a buffer cannot fail
	_ = packer.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// codePoints returns a value with every character escaped.
func codePoints(v string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(v)) {
		fmt.Fprintf(&b, `\u%04x`, unit)
	}
	return b.String()
}

// toJSON encodes any value as JSON.
func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// plants generates secret values and searches for them in any form.
type plants struct {
	random  *rand.Rand
	planted int
	needles map[string]string // forbidden text to the value that it reveals
}

func newPlants() *plants {
	return &plants{random: rand.New(rand.NewPCG(1, 2)), needles: map[string]string{}}
}

// plantValue returns a new value in the next encoding. Neither the value nor a digest of it may appear in the output.
func (p *plants) plantValue() string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	plain := make([]byte, 24)
	for i := range plain {
		plain[i] = letters[p.random.IntN(len(letters))]
	}
	encoded := encodings[p.planted%len(encodings)](string(plain))
	p.planted++
	for _, encode := range encodings {
		p.addNeedle(encode(string(plain)), "the value "+string(plain))
	}
	for _, digested := range []string{string(plain), encoded, toJSON(encoded)} {
		p.addDigestNeedles(digested)
	}
	return encoded
}

func (p *plants) addNeedle(needle, of string) { p.needles[needle] = of }

func (p *plants) addDigestNeedles(of string) {
	md, sha, sha2 := md5.Sum([]byte(of)), sha1.Sum([]byte(of)), sha256.Sum256([]byte(of))
	xx := binary.LittleEndian.AppendUint64(nil, xxhash.Sum64String(of))
	for name, sum := range map[string][]byte{"MD5": md[:], "SHA-1": sha[:], "SHA-256": sha2[:], "XXH64": xx} {
		p.addNeedle(string(sum), "a "+name+" of "+of)
		p.addNeedle(hex.EncodeToString(sum), "a "+name+" of "+of)
		p.addNeedle(base64.StdEncoding.EncodeToString(sum), "a "+name+" of "+of)
	}
}

// window is the length of the part of a needle that is indexed.
const window = 8

// findNeedles returns the needles found in the output.
func (p *plants) findNeedles(output []byte) []string {
	index := map[[window]byte][]string{}
	for needle := range p.needles {
		at := min(len(needle)/3, len(needle)-window)
		key := [window]byte([]byte(needle[at : at+window]))
		index[key] = append(index[key], needle)
	}
	var found []string
	for i := 0; i+window <= len(output); i++ {
		for _, needle := range index[[window]byte(output[i:i+window])] {
			from := i - min(len(needle)/3, len(needle)-window)
			if from >= 0 && from+len(needle) <= len(output) && string(output[from:from+len(needle)]) == needle {
				found = append(found, p.needles[needle]+" as "+needle)
			}
		}
	}
	return found
}

var (
	secrets     = event.Resource{Version: "v1", Resource: "secrets", Kind: "Secret"}
	configMaps  = event.Resource{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"}
	deployments = event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
)

// copyNames are annotations with copies of objects, known and unknown ones.
var copyNames = []string{
	"kubectl.kubernetes.io/last-applied-configuration", "kapp.k14s.io/original", "kapp.k14s.io/original-diff", "kapp.k14s.io/original-diff-md5",
	"objectset.rio.cattle.io/applied", "banzaicloud.com/last-applied", "openshift.io/token-secret.value", "app.oam.dev/last-applied-configuration",
}

type object = map[string]any

// copyAnnotations returns annotations with copies of a Secret.
func (p *plants) copyAnnotations() object {
	all := object{}
	for i, name := range copyNames {
		copied := toJSON(object{"apiVersion": "v1", "kind": "Secret", "data": object{"p": p.plantValue()}, "stringData": object{"q": p.plantValue()}})
		switch i % 3 {
		case 1:
			copied = gzipBase64(copied)
		case 2:
			copied = copied[:len(copied)-3] // incomplete JSON is not shown
		}
		if strings.HasSuffix(name, ".value") || strings.HasSuffix(name, "md5") {
			copied = p.plantValue()
		}
		all[name] = copied
	}
	return all
}

// newSecret returns a Secret with planted values in every position.
func (p *plants) newSecret() object {
	annotations := p.copyAnnotations()
	for i := range encodings {
		annotations[fmt.Sprintf("example.com/unknown-%d", i)] = p.plantValue()
	}
	annotations["helm.sh/hook"] = "pre-install"
	return object{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
		"metadata": object{
			"annotations": annotations, "labels": object{"l": p.plantValue()}, "unknown": p.plantValue(), "name": "a", "uid": "u",
			"ownerReferences": []any{object{"name": "o", "unknown": p.plantValue()}},
		},
		"data": object{"p": p.plantValue(), "q": p.plantValue(), "r": object{"s": p.plantValue()}}, "stringData": object{"t": p.plantValue()}, "unknown": []any{p.plantValue()},
	}
}

// newConfigMap returns an object without secret values of its own, with copies of Secrets.
func (p *plants) newConfigMap() object {
	return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "a", "uid": "u", "annotations": p.copyAnnotations()}, "data": object{"shown": "x"}}
}

// newDeployment returns a Deployment with planted values at the paths and in a copy of itself.
func (p *plants) newDeployment() object {
	spec := func() object {
		env := []any{object{"name": "A", "value": p.plantValue()}, object{"name": "B", "value": p.plantValue()}}
		return object{"template": object{"spec": object{"containers": []any{object{"name": "c", "env": env}}}}}
	}
	copied := toJSON(object{"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec()})
	annotations := object{"kubectl.kubernetes.io/last-applied-configuration": copied, "example.com/token": p.plantValue()}
	return object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "a", "uid": "u", "annotations": annotations}, "spec": spec()}
}

var planted = []string{"spec.template.spec.containers[*].env[*].value", `metadata.annotations["example.com/token"]`}

// output collects everything that is emitted or stored.
type output struct {
	bytes.Buffer
	t *testing.T
}

// writeChange writes a change in every format and at every truncation step, and as a dead letter.
func (o *output) writeChange(c *event.Change) {
	o.t.Helper()
	for more := true; more; c, more = shape.TruncateOnce(c) {
		letter := *c
		letter.DeadLetter = &event.DeadLetterInfo{Sink: "s", Reason: "r " + c.Withheld}
		for _, seen := range []*event.Change{c, &letter} {
			for _, f := range format.All() {
				o.Write(f.AppendValue(nil, seen))
			}
			o.Write(format.AppendFacts(nil, seen))
		}
		fmt.Fprintf(o, "%q %q", c.Changed, c.Withheld)
	}
}

// writeObservation writes the journaled data.
func (o *output) writeObservation(_ context.Context, given event.Observation) error {
	for _, c := range given.Changes {
		o.writeChange(c)
	}
	for _, k := range given.Known {
		o.WriteString(k.Summary)
	}
	for _, b := range given.Bodies {
		o.Write(b.Raw)
	}
	return nil
}

// lastStates stores bodies in memory.
type lastStates map[string]event.Body

func (l lastStates) Body(_, key string) (event.Body, bool, error) { b, ok := l[key]; return b, ok, nil }
func (l lastStates) BodyResources() []string                      { return nil }
func (l lastStates) DropBodies(context.Context, string) error     { return nil }

// TestNoPlantedValueIsSeen plants values in Secrets, their annotations, copies on other kinds and at configured paths, in
// many encodings. It searches for each value, in every encoding and as a digest, in everything that is emitted or stored.
func TestNoPlantedValueIsSeen(t *testing.T) {
	for name, p := range map[string]shape.Policy{
		"mask": {}, "drop": {Redact: "drop"}, "hmac": {Redact: "hmac"},
	} {
		t.Run(name, func(t *testing.T) {
			p.RedactPaths = planted
			requireNothingSeen(t, p, 2000)
		})
	}
	for name, p := range map[string]shape.Policy{
		"hmac, global":             {Redact: "hmac", HMAC: shape.HashOptions{Scope: "global"}},
		"before and values":        {Before: "full", Changed: "values"},
		"hmac and values":          {Redact: "hmac", Changed: "values"},
		"drop and pointers":        {Redact: "drop", Changed: "paths", IgnoreChanges: []string{"metadata.labels.x"}},
		"a filter that fails":      {Filter: `int(object.data.p + object.metadata.annotations["example.com/token"]) == 1`},
		"a filter over old states": {Filter: `oldObject == null || oldObject.data != object.data || true`},
		"fields":                   {Fields: shape.Fields{Drop: []string{"status"}}, Before: "full"},
	} {
		t.Run(name, func(t *testing.T) {
			p.RedactPaths = planted
			requireNothingSeen(t, p, 400)
		})
	}
}

func requireNothingSeen(t *testing.T, policy shape.Policy, count int) {
	t.Helper()
	values, out, kept := newPlants(), &output{t: t}, lastStates{}
	if err := policy.Validate("resources[0]", true); err != nil {
		t.Fatal(err)
	}
	shaper, err := shape.New([]shape.Policy{policy}, shape.Options{Key: []byte("0123456789abcdef"), JournalSecret: []byte("secret"), Bodies: kept})
	if err != nil {
		t.Fatal(err)
	}
	to := shaper.WrapAppend(0, func(ctx context.Context, o event.Observation) error {
		for _, b := range o.Bodies {
			kept[b.Key] = b
		}
		return out.writeObservation(ctx, o)
	})
	version := 0
	for values.planted < count {
		for _, of := range []struct {
			resource event.Resource
			make     func() object
		}{{secrets, values.newSecret}, {configMaps, values.newConfigMap}, {deployments, values.newDeployment}} {
			clear(kept)
			for _, kind := range []event.Type{event.Snapshot, event.Added, event.Updated, event.Updated, event.Deleted} {
				version++
				c := &event.Change{Type: kind, Resource: of.resource, Name: "a", UID: "u", ResourceVersion: fmt.Sprint(version), Class: event.ClassSpec}
				body := []byte(toJSON(of.make()))
				if version%7 == 0 {
					body = body[:len(body)-4] // becomes a withheld change
				}
				if c.After = body; kind == event.Deleted {
					c.After, c.Before = nil, body
				}
				digest := binary.LittleEndian.AppendUint64(nil, xxhash.Sum64(body))
				values.addNeedle(string(digest), "the digest of an object")
				known := event.Known{Key: "a", UID: "u", Summary: "\x01" + string(digest)}
				o := event.Observation{Resource: of.resource, Scope: "s", Changes: []*event.Change{c}, Known: []event.Known{known}}
				if err := to(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				brought := event.Body{Key: "b", UID: "b", ResourceVersion: "1", Raw: body} // as after a failover
				if err := to(t.Context(), event.Observation{Resource: of.resource, Scope: "s", Bodies: []event.Body{brought}}); err != nil {
					t.Fatal(err)
				}
				out.writeChange(redactStored(t, shaper, of.resource, kind, body))
			}
		}
	}
	for _, s := range shaper.Stats() {
		out.WriteString(s.Failure)
	}
	for _, found := range values.findNeedles(out.Bytes()) {
		t.Errorf("seen: %s", found)
	}
	if redacted := bytes.Count(out.Bytes(), []byte(`***`)) + bytes.Count(out.Bytes(), []byte("hmac-sha256:")); redacted < values.planted && policy.Redact != "drop" {
		t.Errorf("%d values are planted and %d redacted", values.planted, redacted)
	}
}

// redactStored returns a change that was journaled in plain text, redacted under new rules.
func redactStored(t *testing.T, shaper *shape.Shaper, resource event.Resource, kind event.Type, body []byte) *event.Change {
	t.Helper()
	c := &event.Change{Type: kind, Resource: resource, Name: "a", UID: "u", ResourceVersion: "1"}
	if c.After, c.Changed = body, diff.Values([]byte("{}"), body); kind == event.Deleted {
		c.Before, c.After, c.Changed = body, nil, nil
	}
	if !shaper.RedactStoredChange(c) {
		t.Fatal("a change journaled in plain text was not redacted")
	}
	b := event.Body{Key: "a", UID: "u", Raw: body}
	if !shaper.RedactStoredBody(resource, &b) || bytes.Equal(b.Raw, body) {
		t.Fatal("a state stored in plain text was not redacted")
	}
	return c
}
