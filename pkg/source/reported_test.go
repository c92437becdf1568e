package source

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// thingAt is an object in a version.
func thingAt(name, version string) string {
	return strings.Replace(thing(name, "uid-of-"+name, `,"spec":{},"status":{}`), `"5"`, strconv.Quote(version), 1)
}

func thingEvent(typ, name, version string) string {
	return fmt.Sprintf(`{"type":%q,"object":%s}`, typ, thingAt(name, version)) + "\n"
}

const expiredEvent = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
	`"message":"The resourceVersion for the provided watch is too old.","reason":"Expired","code":410}}` + "\n"

// reportedServer is a server of which a public report has that its clients lose changes, repeat them, or do nothing else.
type reportedServer struct {
	list  func(n int64, w http.ResponseWriter) // answers the nth list
	watch func(n int64, from string, send func(string)) (open bool)
}

// TestWhatOtherClientsStumbledOverIsFollowed: each change comes once and in order, and the server is not asked without end.
func TestWhatOtherClientsStumbledOverIsFollowed(t *testing.T) {
	listAt := func(version string, names ...string) func(int64, http.ResponseWriter) {
		return func(_ int64, w http.ResponseWriter) {
			var items []string
			for _, name := range names {
				items = append(items, thingAt(name, "5"))
			}
			fmt.Fprintf(w, `{"kind":"ThingList","apiVersion":"example.com/v1","metadata":{"resourceVersion":%q},"items":[%s]}`,
				version, strings.Join(items, ","))
		}
	}
	for name, c := range map[string]struct {
		server reportedServer
		want   []string
	}{
		"lines that keep the connection open": {reportedServer{listAt("9", "a"), func(n int64, _ string, send func(string)) bool {
			if n == 1 {
				send("\n")
				send("\r\n\n" + thingEvent("MODIFIED", "a", "10") + "\n")
				send(" ")
				send(thingEvent("MODIFIED", "a", "11"))
			}
			return true
		}}, []string{"snapshot a@5", "updated a@10", "updated a@11"}},
		"a delete in its last version, and an end": {reportedServer{listAt("9", "a", "b"), func(n int64, from string, send func(string)) bool {
			switch {
			case n == 1:
				send(thingEvent("MODIFIED", "b", "12"))
				send(thingEvent("DELETED", "a", "5"))
				return false
			case from == "5": // which would be before its begin
				t.Errorf("the watch begins at %s again", from)
				send(thingEvent("MODIFIED", "b", "12")) // as a server does that is asked for what came before
			}
			send(thingEvent("MODIFIED", "b", "13"))
			return true
		}}, []string{"snapshot a@5", "snapshot b@5", "updated b@12", "deleted a@5", "updated b@13"}},
		"everything at each connection": {reportedServer{listAt("9", "a", "b"), func(n int64, _ string, send func(string)) bool {
			for _, one := range []string{"a", "b"} {
				send(thingEvent("ADDED", one, "5"))
			}
			if n < 4 {
				return false
			}
			send(thingEvent("MODIFIED", "b", "10"))
			return true
		}}, []string{"snapshot a@5", "snapshot b@5", "updated b@10"}},
		"lost history, and lists that fail": {reportedServer{func(n int64, w http.ResponseWriter) {
			if 1 < n && n < 8 {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			listAt(strconv.FormatInt(8+n, 10), "a")(n, w)
		}, func(n int64, from string, send func(string)) bool {
			if from == "9" {
				send(expiredEvent)
				return false
			}
			send(thingEvent("MODIFIED", "a", "30"))
			return true
		}}, []string{"snapshot a@5", "gap 9-16", "updated a@30"}},
		"a version that is too large at first": {reportedServer{func(n int64, w http.ResponseWriter) {
			if n < 5 {
				w.WriteHeader(http.StatusGatewayTimeout)
				fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Too large resource version",`+
					`"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}`)
				return
			}
			listAt("9", "a")(n, w)
		}, func(_ int64, _ string, send func(string)) bool {
			send(thingEvent("MODIFIED", "a", "10"))
			return true
		}}, []string{"snapshot a@5", "updated a@10"}},
		"an event of a type that nobody knows": {reportedServer{listAt("9", "a"), func(n int64, from string, send func(string)) bool {
			if n == 1 {
				send(thingEvent("MODIFIED", "a", "10"))
				send(`{"type":"PING","object":{"kind":"Ping","apiVersion":"v1"}}` + "\n")
				return false
			}
			if from == "10" {
				send(thingEvent("MODIFIED", "a", "11"))
			}
			return true
		}}, []string{"snapshot a@5", "updated a@10", "updated a@11"}},
		"an event in one byte a packet, and two in one": {reportedServer{listAt("9", "a"), func(_ int64, _ string, send func(string)) bool {
			for _, b := range []byte(thingEvent("MODIFIED", "a", "10")) {
				send(string(b))
			}
			send(thingEvent("MODIFIED", "a", "11") + thingEvent("DELETED", "a", "12"))
			return true
		}}, []string{"snapshot a@5", "updated a@10", "updated a@11", "deleted a@12"}},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, _ func(*Config)) {
				f.groups = []apidiscovery.APIGroupDiscovery{groupOf("example.com", "v1", "things")}
				var lists, watches atomic.Int64
				_, _, stop := startSource(t, f, st, func(to *Config) {
					to.Rules = []selection.Rule{{Select: []string{"things.example.com"}}}
					connectTo(t, to, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						q := r.URL.Query()
						switch {
						case !strings.Contains(r.URL.Path, "/things"):
							f.ServeHTTP(w, r)
						case asksForStream(r) || q.Get("resourceVersion") == "0" && q.Get("watch") != "":
							refuseWith(501)(w, r)
						case q.Get("watch") == "" && q.Get("limit") == "1": // for a position
							listAt("40")(0, w)
						case q.Get("watch") == "":
							c.server.list(lists.Add(1), w)
						default:
							w.(http.Flusher).Flush()
							if c.server.watch(watches.Add(1), q.Get("resourceVersion"), func(text string) {
								fmt.Fprint(w, text)
								w.(http.Flusher).Flush()
							}) {
								<-r.Context().Done()
							}
						}
					}))
				})
				defer stop()
				st.awaitTrue(t, c.want[len(c.want)-1], func() bool { return slices.Contains(st.transcript(), c.want[len(c.want)-1]) })
				time.Sleep(5 * time.Minute)
				if got := st.transcript(); !slices.Equal(got, c.want) {
					t.Errorf("emitted\n got %q\nwant %q", got, c.want)
				}
				if n := lists.Load() + watches.Load(); n > 60 {
					t.Errorf("%d lists, %d watches in five minutes", lists.Load(), watches.Load())
				}
			})
		})
	}
}
