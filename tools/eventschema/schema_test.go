package eventschema

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

var update = flag.Bool("update", false, "rewrite docs/schema and the tables of docs/events-reference.md")

const (
	schemas = "../../docs/schema"
	page    = "../../docs/events-reference.md"
)

func TestPublishedSchemasAreUpToDate(t *testing.T) {
	for _, name := range Names() {
		want, err := PublishedSchema(name)
		if err != nil {
			t.Fatal(err)
		}
		requireFile(t, filepath.Join(schemas, name+".schema.json"), string(want))
	}
	files, err := filepath.Glob(filepath.Join(schemas, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".schema.json")
		if name != "config" && !slices.Contains(Names(), name) { // config belongs to internal/config
			t.Errorf("%s is not a schema of an event", file)
		}
	}
}

func TestPublishedTableIsUpToDate(t *testing.T) {
	const begin, end = "<!-- members: written by make generate -->\n", "<!-- end of members -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, opened := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !opened || !closed {
		t.Fatal("docs/events-reference.md lacks the markers of the table of members")
	}
	table := "\n| member | type | meaning |\n|---|---|---|\n"
	for _, m := range Members() {
		table += fmt.Sprintf("| `%s` | %s | %s |\n", m.Name, m.Type, m.Meaning)
	}
	requireFile(t, page, head+begin+table+"\n"+end+tail)
}

// requireFile compares a file with the wanted contents, or writes them with -update.
func requireFile(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date; run make generate", file)
	}
}

// compileSchemas returns the published and the strict schema of a format.
func compileSchemas(t testing.TB, name string) []*jsonschema.Schema {
	t.Helper()
	var both []*jsonschema.Schema
	for _, of := range []func(string) ([]byte, error){PublishedSchema, StrictSchema} {
		text, err := of(name)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		c.DefaultDraft(jsonschema.Draft2020)
		c.AssertFormat()
		if err := c.AddResource(ID(name), doc); err != nil {
			t.Fatal(err)
		}
		s, err := c.Compile(ID(name))
		if err != nil {
			t.Fatalf("%s is not a valid schema: %v", name, err)
		}
		both = append(both, s)
	}
	return both
}

func validateValue(all []*jsonschema.Schema, value []byte) error {
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return err
	}
	for _, s := range all {
		if err := s.Validate(instance); err != nil {
			return fmt.Errorf("%w\nin %s", err, value)
		}
	}
	return nil
}

// schemaNameOf returns the name of the schema for the values of a format.
func schemaNameOf(f format.Format) string {
	if f == format.CloudEvents {
		return "json"
	}
	return f.String()
}

func TestEverySampleIsValid(t *testing.T) {
	for _, f := range format.All() {
		all := compileSchemas(t, schemaNameOf(f))
		files, err := filepath.Glob(filepath.Join("../../pkg/format/testdata", f.String(), "*.txt"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%v has no samples (%v)", f, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			value := text[bytes.LastIndexByte(bytes.TrimSpace(text), '\n')+1:]
			if string(value) == "(no value)\n" {
				continue
			}
			if err := validateValue(all, value); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// TestRandomChangesMatchTheirSchemas encodes changes with random members.
func TestRandomChangesMatchTheirSchemas(t *testing.T) {
	all := map[format.Format][]*jsonschema.Schema{}
	for _, f := range format.All() {
		all[f] = compileSchemas(t, schemaNameOf(f))
	}
	for seed := range uint64(2000) {
		c := anyChange(rand.New(rand.NewPCG(seed, 1)))
		for _, f := range format.All() {
			value := f.AppendValue(nil, c)
			if len(value) == 0 {
				continue
			}
			if err := validateValue(all[f], value); err != nil {
				t.Fatalf("seed %d, %v: %v", seed, f, err)
			}
		}
		if c.After == nil { // without after, the facts are a complete native object
			if err := validateValue(all[format.JSON], format.AppendFacts(nil, c)); err != nil {
				t.Fatalf("seed %d, facts: %v", seed, err)
			}
		}
	}
}

// anyChange returns a random change that the pipeline could produce.
func anyChange(r *rand.Rand) *event.Change {
	maybe := func() bool { return r.IntN(2) == 0 }
	c := &event.Change{
		Type: event.Type(allTypes[r.IntN(len(allTypes))]), Cluster: "a \"b\" €",
		Resource:        event.Resource{Group: pickValue(r, "", "apps"), Version: "v1", Resource: "things", Kind: "Thing"},
		ResourceVersion: pickValue(r, "7", "not-a-number"), Namespace: pickValue(r, "", "shop"), ObservedAt: time.Unix(r.Int64N(1e10), r.Int64N(1e9)),
	}
	switch c.Type {
	case event.Gap:
		c.Gap = &event.GapInfo{From: pickValue(r, "", "3"), To: "7", Reason: "a\nb"}
		return c
	case event.AttributionGap:
		c.ResourceVersion, c.Gap = "", &event.GapInfo{From: pickValue(r, "", "2026-01-02T03:04:05Z"), To: "2026-01-02T03:04:06Z", Reason: "a\nb"}
		return c
	case event.Attributed:
		c.Name, c.UID, c.Attribution = "web", "u", &event.Attribution{Of: "x", Certainty: event.Exact, By: anyIdentity(r)}
		if maybe() {
			asked := anyIdentity(r)
			c.Attribution.RequestedBy = &asked
		}
		return c
	case event.ReplayEnd:
		c.Replay = &event.ReplayInfo{ID: "x", State: "done", Count: r.IntN(3), Reason: pickValue(r, "", "why")}
		return c
	case event.Watermark:
		c.Watermark = &event.WatermarkInfo{Epoch: "x", Sequence: 1 + r.Uint64N(3), Lane: r.IntN(3), Lanes: 3}
		if maybe() {
			var d event.Digest
			c.Watermark.Algorithm, c.Watermark.Count, c.Watermark.Digest = event.DigestAlgorithm, r.IntN(3), d.String()
		}
		return c
	case event.SnapshotBegin, event.PartialBegin:
		c.ResourceVersion, c.Snapshot = pickValue(r, "", "7"), &event.SnapshotInfo{ID: "x"}
		return c
	case event.SnapshotEnd, event.PartialEnd:
		var d event.Digest
		c.Snapshot = &event.SnapshotInfo{ID: "x", Position: "7", Count: r.IntN(3), Digest: d.String()}
		return c
	}
	c.Name, c.UID, c.Delta, c.Coalesced = "web", pickValue(r, "", "u"), event.DeltaUpdated, maybe()
	if c.Type == event.Replayed {
		c.Replay, c.Pass = &event.ReplayInfo{ID: "x", Of: "y", Type: event.Deleted}, "x/7"
		return c
	}
	c.Generation = r.Int64N(2)
	if c.Type == event.Snapshot || maybe() {
		c.Snapshot = &event.SnapshotInfo{ID: "x"}
	}
	body := []byte(`{"kind":"Thing","metadata":{"name":"web"},"n":1e400}`)
	if maybe() {
		c.Omitted = []string{"before"}
	}
	if c.Type != event.Snapshot && maybe() {
		c.Pass = "p1"
	}
	if c.Type == event.Deleted {
		c.FinalStateUnknown = c.Coalesced && maybe()
		c.Left = c.FinalStateUnknown && maybe()
		if maybe() {
			c.Before = body
		}
		return c
	}
	c.After = body
	if maybe() {
		c.Actor = &event.Actor{Manager: "m", Operation: "Apply", Subresource: pickValue(r, "", "status"), Time: pickValue(r, "", "2026-01-02T03:04:05Z")}
	}
	if c.Type == event.Updated {
		c.Class = event.Class(pickValue(r, "", "deleting", "spec", "status", "metadata"))
		if maybe() {
			c.Before, c.Changed = body, []byte(pickValue(r, `[]`, `["/a~1b/0"]`, `[{"path":"/l/[name=a~1b]","from":null,"index":0},{"path":"","omitted":["from","to"]}]`))
		}
	}
	return c
}

func anyIdentity(r *rand.Rand) event.Identity {
	i := event.Identity{User: "ann", Verb: "patch", Received: time.Unix(r.Int64N(1e10), 0), UID: pickValue(r, "", "1"), Impersonator: pickValue(r, "", "x"),
		Subresource: pickValue(r, "", "status"), UserAgent: pickValue(r, "", "a\"b"), AuditID: pickValue(r, "", "id")}
	if r.IntN(2) == 0 {
		i.Groups, i.SourceIPs = []string{"a", "b"}, []string{"::1"}
	}
	return i
}

func pickValue(r *rand.Rand, values ...string) string { return values[r.IntN(len(values))] }

// TestAStrictSchemaCanFail ensures that validation detects errors.
func TestAStrictSchemaCanFail(t *testing.T) {
	c := anyChange(rand.New(rand.NewPCG(1, 1)))
	c.Type, c.Snapshot, c.Gap, c.Class, c.Changed = event.Added, nil, nil, "", nil
	c.Name, c.Delta, c.ResourceVersion, c.Before, c.After = "web", event.DeltaAdded, "7", nil, []byte(`{}`)
	c.Watermark, c.Attribution, c.Replay, c.Cluster, c.FinalStateUnknown, c.Left, c.Pass = nil, nil, nil, "prod", false, false, ""
	good := string(format.AppendJSON(nil, c))
	both := compileSchemas(t, "json")
	if err := validateValue(both, []byte(good)); err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]string{
		"another member": strings.Replace(good, `{"id"`, `{"surprise":1,"id"`, 1),
		"another type":   strings.Replace(good, `"type":"added"`, `"type":"vanished"`, 1),
	} {
		if validateValue(both[1:], []byte(bad)) == nil || validateValue(both[:1], []byte(bad)) != nil {
			t.Errorf("%s: strict must refuse what the published schema allows", what)
		}
	}
	if len(good) == len(strings.Replace(good, c.ID(), "", 1)) {
		t.Fatalf("no id in %s", good)
	}
	for what, bad := range map[string]string{
		"no id":            strings.Replace(good, `"id"`, `"di"`, 1),
		"added, no after":  strings.Replace(good, `,"after":{}`, ``, 1),
		"a gap of objects": strings.Replace(good, `"type":"added"`, `"type":"gap"`, 1),
		"an empty id":      strings.Replace(good, `"id":"`+c.ID(), `"id":"`, 1),
		"an empty name":    strings.Replace(good, `"name":"web"`, `"name":""`, 1),
		"no date":          strings.Replace(good, `"observedAt":"`, `"observedAt":"on `, 1),
		"added, but left":  strings.Replace(good, `"after":{}`, `"left":true,"after":{}`, 1),
		"not left":         strings.Replace(good, `"type":"added"`, `"type":"deleted","left":false`, 1),
		"left, as seen":    strings.NewReplacer(`"type":"added"`, `"type":"deleted","left":true`, `,"after":{}`, ``).Replace(good),
		"generation 0":     strings.Replace(good, `"after":{}`, `"generation":0,"after":{}`, 1),
	} {
		if validateValue(both[:1], []byte(bad)) == nil {
			t.Errorf("%s: is allowed", what)
		}
	}
}
