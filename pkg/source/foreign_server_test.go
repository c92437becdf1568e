package source

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apidiscovery "k8s.io/api/apidiscovery/v2"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// startWithThings starts a source of a type of another server, which lists these items, has this object, and sends the
// events.
func startWithThings(t *testing.T, f *fakeAPI, st *store, items []string, object string, events chan string) (*Source, func()) {
	f.groups = []apidiscovery.APIGroupDiscovery{groupOf("example.com", "v1", "things")}
	s, _, stop := startSource(t, f, st, func(c *Config) {
		c.Rules = []selection.Rule{{Select: []string{"things.example.com"}}}
		connectTo(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !strings.Contains(r.URL.Path, "/things"):
				f.ServeHTTP(w, r)
			case r.URL.Query().Get("watch") != "" && r.URL.Query().Get("resourceVersion") == "0":
				fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", object)
			case asksForStream(r):
				refuseWith(501)(w, r)
			case r.URL.Query().Get("watch") == "":
				fmt.Fprintf(w, `{"kind":"ThingList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"9"},"items":[%s]}`, strings.Join(items, ","))
			default:
				w.(http.Flusher).Flush()
				for {
					select {
					case e := <-events:
						fmt.Fprintln(w, e)
						w.(http.Flusher).Flush()
					case <-r.Context().Done():
						return
					}
				}
			}
		}))
	})
	return s, stop
}

func thing(name, uid, rest string) string {
	return fmt.Sprintf(`{"kind":"Thing","apiVersion":"example.com/v1","metadata":{"name":%q,"namespace":"ns","uid":%q,"resourceVersion":"5"}%s}`, name, uid, rest)
}

// TestADeletedNameIsTheDeleteOfTheKnownObject, once: some servers leave out the UID and the version, and send it again.
func TestADeletedNameIsTheDeleteOfTheKnownObject(t *testing.T) {
	for _, alone := range []bool{true, false} {
		inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, _ func(*Config)) {
			events := make(chan string)
			_, stop := startWithThings(t, f, st, []string{thing("a", "u1", ""), thing("b", "u2", "")}, thing("a", "u1", ""), events)
			defer stop()
			st.awaitEmitted(t, "snapshot a@5", "snapshot b@5")
			named := `{"type":"DELETED","object":{"kind":"Thing","apiVersion":"example.com/v1","metadata":{"name":"a","namespace":"ns"}}}`
			if !alone {
				events <- `{"type":"DELETED","object":` + strings.Replace(thing("a", "u1", ""), `"5"`, `"10"`, 1) + `}` + "\n" + named
			}
			events <- named
			events <- named
			events <- `{"type":"MODIFIED","object":` + strings.Replace(thing("b", "u2", ""), `"5"`, `"12"`, 1) + `}`
			want := []string{"snapshot a@5", "snapshot b@5", "deleted a@5", "updated b@12"}
			if !alone {
				want[2] = "deleted a@10"
			}
			st.awaitEmitted(t, want...)
			if c := st.changeAt(2); c.UID != "u1" || c.FinalStateUnknown != alone {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestWhatListsOfOtherServersLackOrHaveTwiceIsNamed, and ends with nothing to say of an ordinary server.
func TestWhatListsOfOtherServersLackOrHaveTwiceIsNamed(t *testing.T) {
	whole := `,"spec":{"a":1},"status":{}`
	for name, c := range map[string]struct {
		items []string
		want  condition.Code
		cause string
	}{
		"metadata alone":   {[]string{thing("a", "u1", "")}, condition.ListIncomplete, "spec, status"},
		"a part":           {[]string{thing("a", "u1", `,"spec":{"a":1}`)}, condition.ListIncomplete, "status"},
		"two of a name":    {[]string{thing("a", "u1", whole), thing("b", "u3", whole), thing("a", "u2", whole)}, condition.ListAmbiguous, "ns/a"},
		"an ordinary list": {[]string{thing("a", "u1", whole)}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, _ func(*Config)) {
				s, stop := startWithThings(t, f, st, c.items, thing("a", "u1", whole), nil)
				defer stop()
				awaitState(t, st, s, Live)
				if got := s.Status()[0].Listing; got.Code != c.want || !strings.Contains(got.Cause, c.cause) || !s.Ready() {
					t.Errorf("%+v", got)
				}
				shown := slices.ContainsFunc(s.Conditions(), func(o condition.Status) bool { return o.Code == c.want && c.want != "" })
				if shown != (c.want != "") {
					t.Errorf("shown: %t", shown)
				}
			})
		})
	}
}
