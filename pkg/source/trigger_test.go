package source

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// answerTypeWatch serves the watches of type definitions, with the same events for both.
func (f *fakeAPI) answerTypeWatch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f.mu.Lock()
	f.typeRequests = append(f.typeRequests, fmt.Sprintf("watch=%s rv=%s", q.Get("watch"), q.Get("resourceVersion")))
	cut, code, hang, mute := f.cut, f.typesRefused, f.hang, f.mute
	var minute <-chan time.Time
	if f.bookmark {
		ticker := time.NewTicker(time.Minute)
		defer ticker.Stop()
		minute = ticker.C
	}
	f.mu.Unlock()
	if got := r.Header.Get("Accept"); got != metadataOnly {
		f.t.Errorf("asked for %q", got)
	}
	if code != 0 {
		writeStatus(w, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: map[int]metav1.StatusReason{
			http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusGone: metav1.StatusReasonExpired,
		}[code]}})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	if mute {
		<-r.Context().Done()
		return
	}
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	for {
		f.mu.Lock()
		changed, events := f.changed, slices.Clone(f.types)
		f.mu.Unlock()
		for _, e := range events {
			if e.rv > from {
				fmt.Fprintf(w, `{"type":%q,"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":%q,"uid":"u","resourceVersion":"%d"}}}`+"\n", e.kind, e.name, e.rv)
				w.(http.Flusher).Flush()
				from = e.rv
			}
		}
		select {
		case <-changed:
		case <-minute:
			fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"%d"}}}`+"\n", from)
			w.(http.Flusher).Flush()
		case <-hang:
			<-r.Context().Done()
			return
		case <-r.Context().Done():
			return
		case <-cut:
			panic(http.ErrAbortHandler)
		}
	}
}

// writeTypeEvent sends an event to the triggers.
func (f *fakeAPI) writeTypeEvent(kind, name string) {
	f.update(func() {
		f.rv++
		f.types = append(f.types, fakeEvent{f.rv, kind, name})
	})
}

func (f *fakeAPI) discoveryPolls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.polls
}

func (f *fakeAPI) typeRequestLog() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.typeRequests)
}

// widgetsRule selects a type that may come and go, in a Source that polls every five seconds.
func widgetsRule(c *Config) {
	c.Rules = []selection.Rule{{Select: []string{"widgets.example.com"}}}
	c.Interval = 0
}

var widgetGroup = groupOf("example.com", "v1", "widgets")

func (f *fakeAPI) setGroups(groups ...apidiscovery.APIGroupDiscovery) {
	f.update(func() { f.groups = groups })
}

func TestNewTypeIsFoundAtOnceAndIdlePollingIsRare(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.writeTypeEvent("ADDED", "others.example.com")
		_, _, stop := startSource(t, f, st, on, widgetsRule)
		defer stop()
		time.Sleep(2 * time.Minute)
		polls := f.discoveryPolls()
		time.Sleep(time.Hour)
		if n := f.discoveryPolls() - polls; n < 115 || n > 150 { // a few more while a trigger reconnects
			t.Errorf("%d polls in a calm hour, want every 30 s", n)
		}

		began := time.Now()
		f.writeTypeEvent("ADDED", "widgets.example.com")
		time.Sleep(100 * time.Millisecond)
		f.setGroups(coreGroup("pods"), widgetGroup)
		f.writeTypeEvent("MODIFIED", "widgets.example.com")
		st.awaitEmitted(t, "snapshot a@11")
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %s", took)
		}

		// Discovery may lag behind the trigger: for a while it is polled as often as without triggers.
		polls = f.discoveryPolls()
		time.Sleep(calmAfter - 5*time.Second)
		if n := f.discoveryPolls() - polls; n < 10 {
			t.Errorf("%d polls in the minute after a change", n)
		}
		for _, r := range f.typeRequestLog() {
			if !strings.HasPrefix(r, "watch=true rv=") {
				t.Errorf("request %s: only the right to watch is needed", r)
			}
		}
	})
}

func TestTypeIsFoundOnceDiscoveryCatchesUp(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		_, _, stop := startSource(t, f, st, on, widgetsRule)
		defer stop()
		time.Sleep(10 * time.Minute)
		f.writeTypeEvent("ADDED", "widgets.example.com")
		time.Sleep(20 * time.Second)
		f.setGroups(coreGroup("pods"), widgetGroup)
		began := time.Now()
		st.awaitEmitted(t, "snapshot a@11")
		if took := time.Since(began); took > defaultInterval {
			t.Errorf("took %s", took)
		}
	})
}

func TestIrrelevantTriggersCostNoMoreThanPolling(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		_, _, stop := startSource(t, f, st, on, widgetsRule)
		defer stop()
		time.Sleep(10 * time.Minute)
		polls := f.discoveryPolls()
		for range 6000 {
			f.writeTypeEvent("MODIFIED", "widgets.example.com") // a CA bundle that is rotated again and again
			time.Sleep(100 * time.Millisecond)
		}
		if n := f.discoveryPolls() - polls; n > 10*60/5+5 {
			t.Errorf("%d polls in ten minutes", n)
		}
	})
}

func TestTypesAreFoundByPollingWithoutRights(t *testing.T) {
	for _, code := range []int{http.StatusForbidden, http.StatusNotFound} {
		inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
			f.writeTypeEvent("ADDED", "others.example.com")
			f.typesRefused = code
			s, log, stop := startSource(t, f, st, on, widgetsRule)
			defer stop()
			time.Sleep(10 * time.Minute)
			polls, requests := f.discoveryPolls(), len(f.typeRequestLog())
			time.Sleep(time.Hour)
			if n := f.discoveryPolls() - polls; n < 715 || n > 725 {
				t.Errorf("%d: %d polls in an hour, want every 5 s", code, n)
			}
			if n := len(f.typeRequestLog()) - requests; n > 2*12 {
				t.Errorf("%d: %d refused requests in an hour", code, n)
			}
			if n := log.CountOf("are not being watched"); n != 1 || log.CountOf("level=WARN") != 1 { // one warning, about the waiting type
				t.Errorf("%d: log\n%s", code, log)
			}
			if failing := condition.Summarize(s.Conditions()); s.Ready() || len(failing) != 2 || failing[0].Code != condition.NothingWatched {
				t.Errorf("%d: ready %v, %+v", code, s.Ready(), failing)
			}

			f.update(func() { f.typesRefused = 0 })
			time.Sleep(2*deniedRecheck + calmAfter)
			if n := log.CountOf("are being watched again"); n != 1 && n != 2 {
				t.Errorf("%d: log\n%s", code, log)
			}
			polls = f.discoveryPolls()
			time.Sleep(5 * time.Minute)
			if n := f.discoveryPolls() - polls; n > 15 {
				t.Errorf("%d: %d polls in five minutes, though the triggers are live", code, n)
			}
		})
	}
}

func TestTriggerOutageMissesNoType(t *testing.T) {
	for name, code := range map[string]int{"history goes on": http.StatusInternalServerError, "history is lost": http.StatusGone} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
				_, _, stop := startSource(t, f, st, on, widgetsRule)
				defer stop()
				f.writeTypeEvent("ADDED", "others.example.com")
				time.Sleep(10 * time.Minute)
				f.update(func() { f.typesRefused = code })
				f.breakStreams()
				time.Sleep(time.Second)
				f.writeTypeEvent("ADDED", "widgets.example.com")
				f.setGroups(coreGroup("pods"), widgetGroup)
				f.update(func() { f.typesRefused = 0 })
				st.awaitEmitted(t, "snapshot a@11")
				time.Sleep(time.Minute)
				requests := f.typeRequestLog()
				got := requests[len(requests)-1]
				if want := map[int]string{500: "watch=true rv=12", 410: "watch=true rv=0"}[code]; got != want {
					t.Errorf("last request %s, want %s", got, want)
				}
			})
		})
	}
}

func TestBuiltInGroupsNeedNoTriggers(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	_, _, stop := startSource(t, f, st)
	st.awaitEmitted(t, "snapshot a@11")
	stop()
	if got := f.typeRequestLog(); len(got) != 0 {
		t.Errorf("requests %q", got)
	}
	for selected, want := range map[string]bool{"pods": false, "deployments.apps": false, "*.batch": false, "*": true, "widgets.example.com": true, "*.v1.cert-manager.io": true} {
		if got := selection.Triggers([]selection.Rule{{Select: []string{"nodes"}}, {Select: []string{selected}}}); (len(got) > 0) != want {
			t.Errorf("%s: %v", selected, got)
		}
	}
}

func TestTriggeredPollsDoNotHastenRemoval(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.groups = []apidiscovery.APIGroupDiscovery{coreGroup("pods"), widgetGroup}
		s, _, stop := startSource(t, f, st, on, widgetsRule)
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(10 * time.Minute)
		f.setGroups(coreGroup("pods")) // like a starting API server
		began := time.Now()
		for time.Since(began) < defaultInterval {
			f.writeTypeEvent("MODIFIED", "widgets.example.com")
			time.Sleep(600 * time.Millisecond)
		}
		f.setGroups(coreGroup("pods"), widgetGroup)
		time.Sleep(time.Minute)
		if got := s.Status(); len(got) != 1 || got[0].State != Live || !slices.Equal(st.transcript(), []string{"snapshot a@11"}) {
			t.Errorf("status %+v, emitted %q", got, st.transcript())
		}

		f.update(func() { f.groups, f.absent = []apidiscovery.APIGroupDiscovery{coreGroup("pods")}, true })
		began = time.Now()
		f.writeTypeEvent("DELETED", "widgets.example.com")
		st.awaitTrue(t, "the end", func() bool { return slices.Contains(st.transcript(), "deleted a@11~") })
		if took := time.Since(began); took > 3*defaultInterval {
			t.Errorf("took %s", took)
		}
	})
}

func TestSilentTriggerIsReopened(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.bookmark = true
		f.writeTypeEvent("ADDED", "others.example.com")
		_, log, stop := startSource(t, f, st, on, widgetsRule)
		defer stop()
		time.Sleep(2 * time.Minute) // for bookmarks
		f.silenceStreams(func() { f.mute = true })
		time.Sleep(staleAfter + 10*time.Second) // for the log line
		if n := log.CountOf("fell silent"); n != 1 {
			t.Errorf("%d lines, want one for both triggers\n%s", n, log)
		}
		polls := f.discoveryPolls()
		time.Sleep(10 * time.Minute)
		if n := f.discoveryPolls() - polls; n < 110 {
			t.Errorf("%d polls while the triggers were silent, want every 5 s", n)
		}
		f.silenceStreams(func() { f.mute = false })
		time.Sleep(2 * staleAfter)
		if n := log.CountOf("are being watched again"); n != 1 {
			t.Errorf("%d lines\n%s", n, log)
		}
		began := time.Now()
		f.setGroups(coreGroup("pods"), widgetGroup)
		f.writeTypeEvent("ADDED", "widgets.example.com")
		st.awaitEmitted(t, "snapshot a@11")
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("took %s", took)
		}
		for _, r := range f.typeRequestLog() {
			if !strings.HasPrefix(r, "watch=true rv=") {
				t.Errorf("request %q", r)
			}
		}
	})
}
