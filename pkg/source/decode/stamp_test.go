package decode

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// permute calls visit with each order of all.
func permute(all []string, visit func([]string)) {
	var place func(n int)
	place = func(n int) {
		if n == len(all) {
			visit(all)
			return
		}
		for i := n; i < len(all); i++ {
			all[n], all[i] = all[i], all[n]
			place(n + 1)
			all[n], all[i] = all[i], all[n]
		}
	}
	place(0)
}

// TestAStampedObjectIsTheObjectWithoutTheStamp: with members in any order, body and summary are those of the object that has
// no stamp, and no annotations if it had no others.
func TestAStampedObjectIsTheObjectWithoutTheStamp(t *testing.T) {
	const stamp = `"` + event.StampAnnotation + `":"4711 a \"user\" \u00fc"`
	const managed = `"managedFields":[{"manager":"k","operation":"Update","fieldsV1":{"f:x":{}}}]`
	type form struct{ with, without string }
	forms := []form{
		{`"annotations":{` + stamp + `}`, ""},
		{`"annotations":{` + stamp + `,"z":"1"}`, `"annotations":{"z":"1"}`},
		{`"annotations":{"a":"{\"metadata\":{}}",` + stamp + `}`, `"annotations":{"a":"{\"metadata\":{}}"}`},
		{`"annotations":{"a":"1",` + stamp + `,"z":"2"}`, `"annotations":{"a":"1","z":"2"}`},
		{`"annotations":{ "a":"1" , ` + stamp + ` , "z":"2" }`, `"annotations":{ "a":"1"  , "z":"2" }`},
		{strings.Replace(`"annotations":{`+stamp+`}`, "kubecdc.io/", `kubecdc\u002eio\/`, 1), ""},
	}
	widgets := event.Resource{Group: "example.io", Version: "v1", Resource: "widgets", Kind: "Widget"}
	body := func(members []string) []byte {
		var there []string
		for _, m := range members {
			if m != "" {
				there = append(there, m)
			}
		}
		return []byte(`{"kind":"Widget","apiVersion":"example.io/v1","metadata":{` + strings.Join(there, ",") + `},"spec":{"annotations":{` + stamp + `}}}`)
	}
	for _, f := range forms {
		permute([]string{f.with, managed, `"name":"w"`, `"labels":{"l":"1"}`}, func(members []string) {
			plain := strings.Split(strings.Replace(strings.Join(members, "\x00"), f.with, f.without, 1), "\x00")
			for _, metadataOnly := range []bool{false, true} {
				d := New(widgets, metadataOnly)
				got, err := d.Object(body(members))
				if err != nil {
					t.Fatalf("%s: %v", body(members), err)
				}
				want, err := d.Object(body(plain))
				if err != nil {
					t.Fatalf("%s: %v", body(plain), err)
				}
				if string(got.Raw) != string(want.Raw) || cap(got.Raw) != len(got.Raw) && !metadataOnly || got.Summary != want.Summary {
					t.Errorf("%s\n got %s\nwant %s, equal summaries: %v", body(members), got.Raw, want.Raw, got.Summary == want.Summary)
				}
				if got.Stamp == nil || *got.Stamp != (event.Stamp{User: `a "user" ü`, Replaced: "4711"}) || want.Stamp != nil {
					t.Errorf("%s: stamp %+v, without %+v", body(members), got.Stamp, want.Stamp)
				}
			}
		})
	}
}

// TestTwoStampsAreRefused: a choice between them would be arbitrary.
func TestTwoStampsAreRefused(t *testing.T) {
	stamp := `"` + event.StampAnnotation + `":"1 a"`
	for _, text := range []string{
		`{"metadata":{"name":"a","annotations":{` + stamp + `,` + stamp + `}}}`,
		`{"metadata":{"name":"a","annotations":{` + stamp + `},"annotations":{` + stamp + `}}}`,
		`{"metadata":{"name":"a","annotations":{"` + event.StampAnnotation + `":1}}}`,
	} {
		if _, err := readObject(text); err == nil {
			t.Errorf("accepted: %s", text)
		}
	}
	for value, want := range map[string]event.Stamp{
		"new:/pods/a/b alice": {User: "alice", Replaced: "new:/pods/a/b"}, "7 a b": {User: "a b", Replaced: "7"}, "": {}, "7": {}, "7 ": {}, " alice": {},
	} {
		o, err := readObject(`{"metadata":{"name":"a","annotations":{"` + event.StampAnnotation + `":"` + value + `"}}}`)
		if err != nil {
			t.Fatal(err)
		}
		if (o.Stamp == nil) != (want == event.Stamp{}) || o.Stamp != nil && *o.Stamp != want {
			t.Errorf("%q: %+v, want %+v", value, o.Stamp, want)
		}
		if string(o.Raw) != `{"metadata":{"name":"a"}}` {
			t.Errorf("%q stays: %s", value, o.Raw)
		}
	}
}
