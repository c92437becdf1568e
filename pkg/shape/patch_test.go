package shape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// describeDifference returns the patch and the paths that a rule emits for an update.
func describeDifference(t testing.TB, mode, before, after string) (patch []byte, changed []string) {
	t.Helper()
	r := &rule{changed: mode}
	c := updatedTo(deployment, after)
	r.describeUpdate(c, []byte(before))
	if c.Patch != nil && !json.Valid(c.Patch) {
		t.Fatalf("the patch is not JSON: %s", c.Patch)
	}
	return c.Patch, c.Changed
}

// applyPatch applies a patch with the library that the API server uses.
func applyPatch(t testing.TB, patch []byte, before string) []byte {
	t.Helper()
	if bytes.HasPrefix(patch, []byte("{")) {
		after, err := jsonpatch.MergePatch([]byte(before), patch)
		if err != nil {
			t.Fatalf("merge patch %s on %s: %v", patch, before, err)
		}
		return after
	}
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	after, err := p.Apply([]byte(before))
	if err != nil {
		t.Fatalf("patch %s on %s: %v", patch, before, err)
	}
	return after
}

func checkPatches(t testing.TB, before, after string) {
	t.Helper()
	for _, mode := range []string{changedMerge, changedPatch} {
		patch, _ := describeDifference(t, mode, before, after)
		if got := applyPatch(t, patch, before); !equalJSON(t, got, []byte(after)) {
			t.Fatalf("%s\nbefore %s\nafter  %s\npatch  %s\ngives  %s", mode, before, after, patch, got)
		}
	}
}

func equalJSON(t testing.TB, a, b []byte) bool {
	return reflect.DeepEqual(decodeJSON(t, a), decodeJSON(t, b))
}

func TestPatchesAreShortAndInTheFormAskedFor(t *testing.T) {
	const before = `{"metadata":{"labels":{"a/b":"1","x~y":"2"},"resourceVersion":"1"},"spec":{"list":[1,{"a":1},3],"n":1.0},"status":{"a":1}}`
	const after = `{"metadata":{"resourceVersion":"2","labels":{"a/b":"1","x~y":"3"}},"spec":{"list":[1,{"a":2},3,4],"n":1.0,"new":{"<":">"}}}`
	patch, _ := describeDifference(t, changedMerge, before, after)
	if want := `{"metadata":{"labels":{"x~y":"3"},"resourceVersion":"2"},"spec":{"list":[1,{"a":2},3,4],"new":{"<":">"}},"status":null}`; string(patch) != want {
		t.Errorf("merge patch\n got %s\nwant %s", patch, want)
	}
	patch, _ = describeDifference(t, changedPatch, before+strings.Repeat(" ", 400), after+strings.Repeat(" ", 400))
	if want := `[{"op":"replace","path":"/metadata/labels/x~0y","value":"3"},{"op":"replace","path":"/metadata/resourceVersion","value":"2"},` +
		`{"op":"replace","path":"/spec/list/1/a","value":2},{"op":"add","path":"/spec/list/3","value":4},{"op":"add","path":"/spec/new","value":{"<":">"}},{"op":"remove","path":"/status"}]`; string(patch) != want {
		t.Errorf("JSON patch\n got %s\nwant %s", patch, want)
	}
	_, changed := describeDifference(t, changedPaths, before, after)
	if want := []string{"/metadata/labels/x~0y", "/metadata/resourceVersion", "/spec/list/1/a", "/spec/list/3", "/spec/new", "/status"}; !slices.Equal(changed, want) {
		t.Errorf("changed %q", changed)
	}
}

func TestAMergePatchThatCannotSetNullIsAJSONPatch(t *testing.T) {
	for after, form := range map[string]byte{`{"a":null}`: '[', `{"a":{"b":null}}`: '[', `{"a":[{"b":null}]}`: '[', `{}`: '{'} {
		patch, _ := describeDifference(t, changedMerge, `{"a":1}`, after)
		if patch[0] != form {
			t.Errorf("%s: %s", after, patch)
		}
		checkPatches(t, `{"a":1}`, after)
	}
}

func TestAPatchIsNeverMuchLongerThanTheObject(t *testing.T) {
	before, after := `{"a":[`, `{"a":[`
	for i := range 1000 {
		before += fmt.Sprintf("%d,", i)
		after += fmt.Sprintf("%d,", i+1_000_000)
	}
	before, after = before+"0]}", after+"1]}"
	patch, _ := describeDifference(t, changedPatch, before, after)
	if len(patch) > len(after)+100 {
		t.Errorf("%d bytes to change %d", len(patch), len(after))
	}
	checkPatches(t, before, after)
}

func TestEveryPatchMakesAfterOfBefore(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 1))
		before := randomObject(random, 3)
		after := mutateObject(random, before)
		b, err1 := json.Marshal(before)
		a, err2 := json.Marshal(after)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		checkPatches(t, string(b), string(a))
	}
}

func randomObject(random *rand.Rand, depth int) map[string]any {
	m := map[string]any{}
	for range random.IntN(5) {
		m[[]string{"a", "b", "c/d", "e~f", "", "ü", `"`, "~1"}[random.IntN(8)]] = randomValue(random, depth-1)
	}
	return m
}

func randomValue(random *rand.Rand, depth int) any {
	if depth > 0 {
		switch random.IntN(3) {
		case 0:
			return randomObject(random, depth)
		case 1:
			list := []any{}
			for range random.IntN(5) {
				list = append(list, randomValue(random, depth-1))
			}
			return list
		}
	}
	return []any{nil, true, false, 1, 2.5, "x", "y/z", map[string]any{}, []any{}}[random.IntN(9)]
}

// mutateObject returns a copy with a few differences.
func mutateObject(random *rand.Rand, v map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range v {
		switch random.IntN(5) {
		case 0:
		case 1:
			out[name] = randomValue(random, 2)
		case 2:
			switch value := value.(type) {
			case map[string]any:
				out[name] = mutateObject(random, value)
			case []any:
				list := slices.Clone(value)
				if at := random.IntN(len(list) + 1); random.IntN(2) == 0 {
					list = slices.Insert(list, at, randomValue(random, 1))
				} else if at < len(list) {
					list = slices.Delete(list, at, at+1)
				}
				out[name] = list
			default:
				out[name] = value
			}
		default:
			out[name] = value
		}
	}
	if random.IntN(3) == 0 {
		out["new"] = randomValue(random, 2)
	}
	return out
}

// FuzzPatches compares patches between random objects with the results of a library.
func FuzzPatches(f *testing.F) {
	f.Add([]byte(`{"a":{"b":[1,2,{"c":null}]}}`), []byte(`{"a":{"b":[2,{"c":1}]},"d":{}}`))
	f.Add([]byte(`{"a":1,"a":2}`), []byte(`{"a":3,"a":2}`))
	f.Add([]byte(` {"~":"\u0041"} `), []byte(`{"~":"A"}`))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		if !bytes.HasPrefix(bytes.TrimSpace(before), []byte("{")) || !bytes.HasPrefix(bytes.TrimSpace(after), []byte("{")) ||
			rawjson.SkipValue(bytes.TrimSpace(before), 0, 0) != len(bytes.TrimSpace(before)) || rawjson.SkipValue(bytes.TrimSpace(after), 0, 0) != len(bytes.TrimSpace(after)) {
			return
		}
		for _, mode := range []string{changedMerge, changedPatch, changedPaths} {
			patch, _ := describeDifference(t, mode, string(before), string(after))
			if patch == nil {
				continue
			}
			if bytes.HasPrefix(patch, []byte(`[{"op":"replace","path":"","value":`)) {
				continue // the library cannot replace the whole document
			}
			if got := applyPatch(t, patch, string(before)); !equalJSON(t, got, after) {
				t.Fatalf("%s\nbefore %s\nafter  %s\npatch  %s\ngives  %s", mode, before, after, patch, got)
			}
		}
	})
}
