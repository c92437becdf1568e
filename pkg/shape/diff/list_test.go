package diff_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/test/parts/values"
)

func decode(t testing.TB, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// requireExact requires that the list of values makes after of before, and before of after.
func requireExact(t testing.TB, before, after []byte) {
	t.Helper()
	list := diff.Values(before, after)
	if bytes.Contains(list, []byte(`"omitted":[`)) && !bytes.Contains(slices.Concat(before, after), []byte("omitted")) {
		return
	}
	got, err := values.Apply(decode(t, before), decode(t, list).([]any))
	if err != nil || !reflect.DeepEqual(got, decode(t, after)) {
		t.Fatalf("before %s\nafter  %s\nlist   %s\ngives  %v, %v", before, after, list, got, err)
	}
	if got, err := diff.Revert(after, list); err != nil || !reflect.DeepEqual(decode(t, got), decode(t, before)) {
		t.Fatalf("before %s\nafter  %s\nlist   %s\nback   %s, %v", before, after, list, got, err)
	}
	if (string(list) == "[]") != (diff.Paths(before, after) == nil) {
		t.Fatalf("before %s\nafter  %s\nlist   %s\npaths  %s", before, after, list, diff.Paths(before, after))
	}
}

func TestEveryDifferenceIsNamedOnceWithItsValues(t *testing.T) {
	for name, c := range map[string]struct{ before, after, want string }{
		"members": {
			`{"metadata":{"labels":{"a/b":"1","x~y":"2"},"resourceVersion":"1"},"spec":{"n":1.0},"status":{"a":1}}`,
			`{"metadata":{"resourceVersion":"2","labels":{"a/b":"1","x~y":"3"}},"spec":{"n":1.0,"new":{"<":">"}}}`,
			`[{"path":"/spec/new","to":{"<":">"}},{"path":"/metadata/labels/x~0y","from":"2","to":"3"},` +
				`{"path":"/metadata/resourceVersion","from":"1","to":"2"},{"path":"/status","from":{"a":1}}]`,
		},
		"null is a value": {`{"a":null,"b":null,"d":1}`, `{"b":0,"c":null,"d":null}`,
			`[{"path":"/a","from":null},{"path":"/b","from":null,"to":0},{"path":"/d","from":1,"to":null},{"path":"/c","to":null}]`},
		"numbers are as they are written": {`{"a":9007199254740993,"b":1e21,"c":-0,"d":1}`, `{"a":9007199254740994,"b":1E21,"c":0,"d":1.0}`,
			`[{"path":"/a","from":9007199254740993,"to":9007199254740994},{"path":"/b","from":1e21,"to":1E21},{"path":"/c","from":-0,"to":0},{"path":"/d","from":1,"to":1.0}]`},
		"equal strings have several spellings": {`{"a":"A\/"}`, `{"a":"\u0041/"}`, `[]`},
		"halves of surrogate pairs differ":     {`{"a":"\ud800"}`, `{"a":"\udfff"}`, `[{"path":"/a","from":"\ud800","to":"\udfff"}]`},
		"a name may have any character":        {`{"\u0000\"":1}`, `{"\u0000\"":2}`, `[{"path":"/\u0000\"","from":1,"to":2}]`},
		"a duplicate name":                     {`{"s":{"a":1,"a":2},"t":1}`, `{"s":{"a":3,"a":2},"t":2}`, `[{"path":"/s","from":{"a":1,"a":2},"to":{"a":3,"a":2}},{"path":"/t","from":1,"to":2}]`},
		"items of a list of scalars":           {`{"l":["a","b","c","z"],"m":["a","z"]}`, `{"l":["a","z"],"m":["a","b","c","z"]}`, `[{"path":"/l/2","from":"c"},{"path":"/l/1","from":"b"},{"path":"/m/1","to":"b"},{"path":"/m/2","to":"c"}]`},
		"items by name": {
			`{"c":[{"name":"old"},{"name":"web","image":"a:1"},{"name":"log","image":"l:1"}]}`,
			`{"c":[{"name":"new"},{"name":"web","image":"a:2"},{"name":"log","image":"l:1"}]}`,
			`[{"path":"/c/[name=old]","from":{"name":"old"},"index":0},{"path":"/c/[name=web]/image","from":"a:1","to":"a:2"},{"path":"/c/[name=new]","to":{"name":"new"},"index":0}]`,
		},
		"items that change places": {`{"e":[{"name":"a"},{"name":"b","v":1}]}`, `{"e":[{"name":"b","v":2},{"name":"a"}]}`,
			`[{"path":"/e","from":[{"name":"a"},{"name":"b","v":1}],"to":[{"name":"b","v":2},{"name":"a"}]}]`},
		"two of one name": {`{"e":[{"name":"a","v":1},{"name":"a","v":2}]}`, `{"e":[{"name":"a","v":1},{"name":"a","v":3}]}`, `[{"path":"/e/1/v","from":2,"to":3}]`},
		"items by two keys": {
			`{"ports":[{"containerPort":53,"protocol":"TCP","name":"x"},{"containerPort":53,"protocol":"UDP"}]}`, `{"ports":[{"containerPort":53,"protocol":"TCP","name":"y"},{"containerPort":53,"protocol":"UDP"}]}`,
			`[{"path":"/ports/[containerPort=53,protocol=TCP]/name","from":"x","to":"y"}]`,
		},
		"a key with a slash":          {`{"m":[{"mountPath":"/a~","name":"n"}]}`, `{"m":[{"mountPath":"/a~","name":"m"}]}`, `[{"path":"/m/[mountPath=~1a~0]/name","from":"n","to":"m"}]`},
		"a key with a comma":          {`{"e":[{"name":"a,b=c","v":1}]}`, `{"e":[{"name":"a,b=c","v":2}]}`, `[{"path":"/e/0/v","from":1,"to":2}]`},
		"a key that changes its type": {`{"e":[{"port":80}]}`, `{"e":[{"port":"80"}]}`, `[{"path":"/e/[port=80]/port","from":80,"to":"80"}]`},
		"masked keys":                 {`{"e":[{"name":"***","v":1},{"name":"***","v":1}]}`, `{"e":[{"name":"***","v":1},{"name":"***","v":2}]}`, `[{"path":"/e/1/v","from":1,"to":2}]`},
	} {
		if got := diff.Values([]byte(c.before), []byte(c.after)); string(got) != c.want {
			t.Errorf("%s\n got %s\nwant %s", name, got, c.want)
		}
		if name != "a duplicate name" && name != "halves of surrogate pairs differ" { // decoded they are something else
			requireExact(t, []byte(c.before), []byte(c.after))
		}
	}
}

func TestPathsAreThoseOfTheValuesSorted(t *testing.T) {
	const before = `{"metadata":{"labels":{"x~y":"2"},"resourceVersion":"1"},"spec":{"list":[1,{"a":1},3]},"status":{"a":1}}`
	const after = `{"metadata":{"resourceVersion":"2","labels":{"x~y":"3"}},"spec":{"list":[1,{"a":2},3,4],"new":{}}}`
	const want = `["/metadata/labels/x~0y","/metadata/resourceVersion","/spec/list/1/a","/spec/list/3","/spec/new","/status"]`
	if got := diff.Paths([]byte(before), []byte(after)); string(got) != want {
		t.Errorf("paths %s", got)
	}
}

// TestAListOfValuesIsBounded at each edge: a value, the list, and a pointer that alone is too long.
func TestAListOfValuesIsBounded(t *testing.T) {
	const maxValue, maxList = 4096, 32768
	object := func(value string) []byte { return []byte(`{"a":1,"v":"` + value + `"}`) }
	for length, want := range map[int]string{maxValue - 2: strings.Repeat("x", maxValue-2) + `"}]`, maxValue - 1: `[{"path":"/v","from":"","omitted":["to"]}]`} {
		if got := string(diff.Values(object(""), object(strings.Repeat("x", length)))); !strings.HasSuffix(got, want) {
			t.Errorf("a text of %d bytes: %.200s", length, got)
		}
	}
	if got := diff.Values(object(strings.Repeat("x", maxValue)), object(strings.Repeat("y", maxValue))); string(got) != `[{"path":"/v","omitted":["from","to"]}]` {
		t.Errorf("two long texts: %.200s", got)
	}
	const rest = `{"path":"","omitted":["from","to"]}]`
	for items := 600; items < 1000; items++ {
		before, after := []byte(`{"l":[`), []byte(`{"l":[`)
		for i := range items {
			before, after = fmt.Appendf(before, "%d,", i), fmt.Appendf(after, "%d,", i+1000)
		}
		got := diff.Values(append(before, "0]}"...), append(after, "0]}"...))
		if len(got) > maxList+len(rest)+1 || !json.Valid(got) || bytes.HasSuffix(got, []byte(rest)) && len(got) < maxList-100 {
			t.Fatalf("%d items: %d bytes, …%s", items, len(got), got[max(0, len(got)-100):])
		}
		if _, err := diff.Revert(append(after, "0]}"...), got); (err != nil) != bytes.HasSuffix(got, []byte(rest)) {
			t.Fatalf("%d items: %v", items, err)
		}
	}
	if got := diff.Values([]byte(`{"`+strings.Repeat("n", maxList)+`":1}`), []byte("{}")); string(got) != "["+rest {
		t.Errorf("a long name: %.200s", got)
	}
}

// TestWhatPeopleWriteComesFirst so that a flood of annotations hides no change of a spec.
func TestWhatPeopleWriteComesFirst(t *testing.T) {
	object := func(n int) []byte {
		b := fmt.Appendf(nil, `{"status":{"n":%d},"metadata":{"annotations":{"a":""`, n)
		for i := range 2000 {
			b = fmt.Appendf(b, `,"a%d":"%d"`, i, n)
		}
		return fmt.Appendf(b, `}},"spec":{"n":%d}}`, n)
	}
	if got := diff.Values(object(1), object(2)); !bytes.HasPrefix(got, []byte(`[{"path":"/spec/n","from":1,"to":2},{"path":"/metadata/annotations/a0",`)) || len(got) > 33000 {
		t.Errorf("%d bytes: %.200s", len(got), got)
	}
}

// A comparison reads the rest of a value at each level, which an attacker could make expensive.
func TestDeepValuesAreReplacedWhole(t *testing.T) {
	nest := func(value string) []byte {
		return []byte(strings.Repeat(`{"a":[`, 4000) + value + strings.Repeat("]}", 4000))
	}
	all := diff.Between(nest("1"), nest("2"))
	if len(all) != 1 || strings.Count(all[0].Path, "/") > 128 || !strings.Contains(string(all[0].To), "2") {
		t.Errorf("%.200v", all)
	}
}

func TestEveryListMakesAfterOfBefore(t *testing.T) {
	for seed := range uint64(5000) {
		random := rand.New(rand.NewPCG(seed, 1))
		before := randomObject(random, 4)
		after := mutate(random, before)
		b, err1 := json.Marshal(before)
		a, err2 := json.Marshal(after)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		requireExact(t, b, a)
	}
}

var names = []string{"name", "type", "port", "protocol", "key", "a/b", "e~f", "", "ü", `"`, "~1", "\x00", "0", "[name=a]"}

func randomObject(random *rand.Rand, depth int) map[string]any {
	m := map[string]any{}
	for range random.IntN(5) {
		m[names[random.IntN(len(names))]] = randomValue(random, depth-1)
	}
	return m
}

func randomValue(random *rand.Rand, depth int) any {
	if depth > 0 {
		switch random.IntN(4) {
		case 0:
			return randomObject(random, depth)
		case 1:
			return randomList(random, depth, randomValue)
		case 2:
			return randomList(random, depth, randomItem)
		}
	}
	return []any{nil, true, false, 1, json.Number("1.0"), json.Number("9007199254740993"), "x", "y/z", "1", map[string]any{}, []any{}}[random.IntN(11)]
}

func randomList(random *rand.Rand, depth int, of func(*rand.Rand, int) any) []any {
	list := []any{}
	for range random.IntN(6) {
		list = append(list, of(random, depth-1))
	}
	return list
}

// randomItem returns an item of a list with keys, which is seldom the same as another one.
func randomItem(random *rand.Rand, depth int) any {
	item := map[string]any{"name": []any{"a", "b/", "~c", "d]", "e=f", "\x00", "g,h", 7, json.Number("7.0"), "7", ""}[random.IntN(11)], "v": randomValue(random, depth)}
	if random.IntN(3) == 0 {
		item["port"], item["protocol"] = random.IntN(3), []any{"TCP", "UDP", nil}[random.IntN(3)]
	}
	return item
}

// mutate returns a copy with a few differences.
func mutate(random *rand.Rand, value any) any {
	if random.IntN(8) == 0 {
		return randomValue(random, 2)
	}
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, inner := range v {
			if out[name] = mutate(random, inner); random.IntN(8) == 0 {
				delete(out, name)
			}
		}
		if random.IntN(3) == 0 {
			out[names[random.IntN(len(names))]] = randomValue(random, 2)
		}
		return out
	case []any:
		out := []any{}
		for _, inner := range v {
			if random.IntN(6) > 0 {
				out = append(out, mutate(random, inner))
			}
			if random.IntN(6) == 0 {
				out = append(out, randomItem(random, 1))
			}
		}
		if random.IntN(6) == 0 {
			random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		}
		return out
	}
	return value
}

// FuzzValues applies lists to what they were made of.
func FuzzValues(f *testing.F) {
	f.Add([]byte(`{"a":{"b":[1,2,{"c":null}]}}`), []byte(`{"a":{"b":[2,{"c":1}]},"d":{}}`))
	f.Add([]byte(`{"a":[{"name":"x","v":1},{"name":"y"}]}`), []byte(`{"a":[{"name":"z"},{"name":"y","v":[]},{"name":"x~/"}]}`))
	f.Add([]byte(` {"~":"\u0041"} `), []byte(`{"~":"A"}`))
	f.Add([]byte(`{"e":[{"port":80,"protocol":"x"}]}`), []byte(`{"e":[{"port":"80","protocol":"x"},{"port":1,"protocol":""}]}`))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		for _, text := range [...][]byte{before, after} {
			if !json.Valid(text) || !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) || bytes.ContainsRune(text, '\ufffd') ||
				bytes.Contains(text, []byte("omitted")) || bytes.Contains(text, []byte(`\u`)) || hasDuplicates(text) {
				return
			}
		}
		requireExact(t, before, after)
	})
}

// hasDuplicates reports whether decoding loses members: some are of one name.
func hasDuplicates(text []byte) bool {
	var v any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return true
	}
	b, err := json.Marshal(v)
	return err != nil || bytes.Count(b, []byte(":")) != bytes.Count(text, []byte(":"))
}
