package e2e

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// TestEverythingIsListedOnce has an API server without WatchList, as all were before Kubernetes 1.32: the exporter lists
// once and watches on from there, also after a restart.
func TestEverythingIsListedOnce(t *testing.T) {
	l := newRestricted(t, webConfigMaps, "--feature-gates=WatchList=false")
	l.grantAll()
	load := l.cluster.Start(t.Context(), workload.Plan{ // every second object stays
		Namespace: "web", Prefix: "listed", Kinds: []workload.Kind{workload.ConfigMaps}, Clients: clients, Objects: 1200,
	})
	defer load.Stop()
	l.must(load.Wait())
	i := l.inhabit("listing.yaml", "fail")
	for _, run := range []struct {
		name string
		want requests
	}{
		{"first", requests{pages: 2}},
		{"restart", requests{}},
	} {
		began := time.Now()
		i.begin()
		i.must(i.cluster.Create(t.Context(), workload.ConfigMaps, "web", run.name))
		i.awaitEmitted(run.name)
		i.awaitAgreement()
		i.stop()
		if got := l.requestsSince(began); got != run.want {
			t.Errorf("%s: %+v, want %+v", run.name, got, run.want)
		}
	}
}

// requests are what the exporter has asked in order to read all ConfigMaps.
type requests struct{ pages int }

// requestsSince asks the audit log. Questions that read one object at most are left out: they find out how far the API
// server is.
func (l *restricted) requestsSince(since time.Time) (r requests) {
	l.t.Helper()
	watches := 0
	for _, e := range l.asked(since) {
		asked, err := url.ParseRequestURI(e.RequestURI)
		l.must(err)
		query := asked.Query()
		switch {
		case query.Has("fieldSelector") || query.Get("limit") == "1":
		case e.Verb == "list":
			if e.Code == http.StatusOK { // else it is asked for again
				r.pages++
			}
		case e.Stage != "ResponseStarted": // a watch has two entries
		default:
			watches++
		}
	}
	if watches == 0 {
		l.t.Error("the audit log shows no watch, so it shows nothing at all")
	}
	return r
}

// asked is what the exporter has asked about ConfigMaps since then, as the audit log has it.
func (l *restricted) asked(since time.Time) []controlplane.AuditEntry {
	l.t.Helper()
	entries, err := l.controlPlane.AuditEntries()
	l.must(err)
	return slices.DeleteFunc(entries, func(e controlplane.AuditEntry) bool {
		return e.User != account || !strings.HasPrefix(e.UserAgent, "kubecdc/") || e.Resource != "configmaps" || e.Time.Before(since)
	})
}
