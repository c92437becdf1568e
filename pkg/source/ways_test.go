package source

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refuseWith answers with a status.
func refuseWith(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: int32(code), Message: "not supported",
		}})
	}
}

// answeredElsewhere has chosen requests answered by something that stands before the API server.
func answeredElsewhere(t *testing.T, c *Config, f *fakeAPI, chosen func(*http.Request) bool, answer http.HandlerFunc) {
	connectTo(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if chosen(r) {
			f.mu.Lock()
			f.log = append(f.log, "ELSEWHERE")
			f.mu.Unlock()
			answer(w, r)
			return
		}
		f.ServeHTTP(w, r)
	}))
}

func asksForStream(r *http.Request) bool { return r.URL.Query().Get("sendInitialEvents") != "" }

// TestWhateverAnswersAStreamedListTheWatchGoesOnAtOnce: a server without streamed lists, or a proxy that does not pass them,
// is asked for one once; a list of one object stands for it from then on.
func TestWhateverAnswersAStreamedListTheWatchGoesOnAtOnce(t *testing.T) {
	html := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>hello</html>")) }
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	empty := func(http.ResponseWriter, *http.Request) {}
	silent := func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush(); <-r.Context().Done() } // without bookmarks
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		within time.Duration
	}{
		"400": {refuseWith(400), time.Second}, "403": {refuseWith(403), time.Second}, "404": {refuseWith(404), time.Second},
		"415": {refuseWith(415), time.Second}, "429": {refuseWith(429), time.Second}, "500": {refuseWith(500), time.Second},
		"501": {refuseWith(501), time.Second}, "502": {refuseWith(502), time.Second}, "503": {refuseWith(503), time.Second},
		"504": {refuseWith(504), time.Second}, "HTML": {html, time.Second}, "an empty answer": {empty, time.Second},
		"silence": {hang, 7 * time.Second}, "dropped bookmarks": {silent, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
				s, _, stop := startSource(t, f, st, on, func(to *Config) { answeredElsewhere(t, to, f, asksForStream, c.answer) })
				defer stop()
				awaitState(t, st, s, Live)
				for i, object := range []string{"b", "c", "d"} {
					began := time.Now()
					f.breakStreamsAfter(func() { f.rv++; f.history = append(f.history, fakeEvent{f.rv, "ADDED", object}) })
					st.awaitTrue(t, object, func() bool { return strings.Contains(strings.Join(st.transcript(), " "), "added "+object) })
					if took := time.Since(began); took > c.within || i > 0 && took > time.Second {
						t.Errorf("dark for %s after end %d of the watch", took, i)
					}
				}
				if asked := f.countRequests("ELSEWHERE"); asked != 1 {
					t.Errorf("a stream was asked for %d times", asked)
				}
				if ways := s.Status()[0].Ways; !strings.Contains(ways, "no streamed lists (") {
					t.Errorf("ways %q", ways)
				}
			})
		})
	}
}

// TestAnUpgradedServerIsAskedForStreamsAgain: its version shows.
func TestAnUpgradedServerIsAskedForStreamsAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.version, f.noWatchList = "v1.30.0", true
		s, _, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		f.breakStreams()
		st.awaitTrue(t, "a refusal is learnt", func() bool { return strings.Contains(s.Status()[0].Ways, "no streamed lists") })
		f.update(func() { f.version, f.noWatchList = "v1.31.0", false })
		st.awaitTrue(t, "the refusal is forgotten", func() bool { return s.Status()[0].Ways == "" })
		f.breakStreams()
		st.awaitTrue(t, "streams are known", func() bool { return s.Status()[0].Ways == "streamed lists" })
	})
}

// TestAServerWithoutPagesIsReadInOneList: it refuses a limit, its tokens, or repeats its first page.
func TestAServerWithoutPagesIsReadInOneList(t *testing.T) {
	hasPages := func(r *http.Request) bool { return r.URL.Query().Get("watch") == "" && r.URL.Query().Has("limit") }
	page := `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"10","continue":"again"},"items":[` + objectJSON("a", 10) + `]}`
	firstPage := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(page)) }
	tokens := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("continue") {
			refuseWith(500)(w, r)
			return
		}
		firstPage(w, r)
	}
	for name, answer := range map[string]http.HandlerFunc{
		"400": refuseWith(400), "500": refuseWith(500), "501": refuseWith(501), "its tokens fail": tokens, "it repeats a page": firstPage,
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
				f.writeEvents("ADDED", "b")
				s, _, stop := startSource(t, f, st, on, func(to *Config) {
					answeredElsewhere(t, to, f, func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/pods") && hasPages(r) }, answer)
				})
				defer stop()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				awaitState(t, st, s, Live)
				if ctx.Err() != nil || !strings.Contains(s.Status()[0].Ways, "no pages (") || s.Status()[0].Known != 2 {
					t.Errorf("late: %v, %+v", ctx.Err(), s.Status()[0])
				}
			})
		})
	}
}
