package source

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	authorization "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

func TestBuiltInScopesAreWhatTheAPIServerSays(t *testing.T) {
	p := startPlane(t)
	c, err := NewClient(p.config, "test")
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.Explain(t.Context(), []selection.Rule{{Select: []string{"*"}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Matches) < 40 || len(e.Unanswered) > 0 {
		t.Fatalf("%d resources, %v unanswered", len(e.Matches), e.Unanswered)
	}
	for _, m := range e.Matches {
		written, err := selection.ResolveWritten([]selection.Rule{{Select: []string{m.Resource.String()}}})
		if err != nil {
			t.Fatal(err)
		}
		if guess := written.Matches[0]; guess.Assumed || guess.Namespaced != m.Namespaced {
			t.Errorf("%s is namespaced: %v; the table says %v (assumed: %v)", m.Resource, m.Namespaced, guess.Namespaced, guess.Assumed)
		}
	}
}

// reviews answers access reviews: what is in allowed is allowed; "mute" forbids the question itself.
func reviews(t *testing.T, allowed map[string]bool) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorization.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.URL.Path != "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		a := review.Spec.ResourceAttributes
		if a.Namespace == "mute" {
			writeStatus(w, apierrors.NewForbidden(schema.GroupResource{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}, "", nil))
			return
		}
		review.Status.Allowed = allowed[strings.Join([]string{a.Verb, a.Group, a.Resource, a.Namespace, a.Name}, "/")]
		review.Status.Reason = "said the authorizer"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	c, err := NewClient(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

func TestAccessIsAskedForEachScope(t *testing.T) {
	deployments := event.Resource{Group: "apps", Version: "v1", Resource: "deployments"}
	c := reviews(t, map[string]bool{"list/apps/deployments/web/": true, "watch/apps/deployments/web/": true, "list/apps/deployments//one": true})
	got, err := c.Access(t.Context(), []selection.Scope{
		{Resource: deployments, Namespace: "web"},
		{Resource: deployments, FieldSelector: "metadata.name=one"},
		{Resource: deployments},
		{Resource: deployments, Namespace: "mute"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Access{
		{List: Allowed, Watch: Allowed},
		{List: Allowed, Watch: Denied, Reason: "said the authorizer"},
		{List: Denied, Watch: Denied, Reason: "said the authorizer"},
		{List: Unknown, Watch: Unknown, Reason: "these credentials may not create SelfSubjectAccessReviews"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestOnlyWhatAScopeTakesIsMeasured(t *testing.T) {
	var m Measurement
	s := selection.Scope{Filter: func(namespace string) bool { return namespace == "web" }}
	for _, namespace := range []string{"web", "shop"} {
		o := deltas.NewObject(namespace, "a")
		o.Raw = []byte("0123456789")
		m.add(o, s)
	}
	if m.Changes != 1 || m.Bytes != 10 {
		t.Errorf("counted %+v, want one change of 10 bytes", m)
	}
}

func TestAMeasurementSaysWhyItEndedEarly(t *testing.T) {
	f := newFakeAPI(t)
	f.deny = true
	c, err := NewClient(f.config(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	pods := event.Resource{Version: "v1", Resource: "pods"}
	if got := c.Measure(t.Context(), []selection.Scope{{ID: "pods", Resource: pods}}, 1); got[0].Err == nil || !strings.Contains(got[0].Err.Error(), "forbidden") {
		t.Errorf("got %+v, want that it is forbidden", got[0])
	}
}
