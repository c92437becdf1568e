package inspect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	authorization "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// newReviewServer answers access reviews: what is in allowed is allowed; "mute" forbids the question itself.
func newReviewServer(t *testing.T, may map[string]bool) *apiserver.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorization.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.URL.Path != "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		a := review.Spec.ResourceAttributes
		if a.Namespace == "mute" {
			writeForbidden(w)
			return
		}
		review.Status.Allowed = may[strings.Join([]string{a.Verb, a.Group, a.Resource, a.Namespace, a.Name}, "/")]
		review.Status.Reason = "said the authorizer"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	c, err := apiserver.NewClient(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAccessIsAskedForEachScope(t *testing.T) {
	deployments := event.Resource{Group: "apps", Version: "v1", Resource: "deployments"}
	c := newReviewServer(t, map[string]bool{"list/apps/deployments/web/": true, "watch/apps/deployments/web/": true, "list/apps/deployments//one": true})
	got, err := queryAccess(t.Context(), c, []selection.Scope{
		{Resource: deployments, Namespace: "web"},
		{Resource: deployments, FieldSelector: "metadata.name=one"},
		{Resource: deployments},
		{Resource: deployments, Namespace: "mute"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []access{
		{list: allowed, watch: allowed},
		{list: allowed, watch: denied, reason: "said the authorizer"},
		{list: denied, watch: denied, reason: "said the authorizer"},
		{list: unknown, watch: unknown, reason: "these credentials may not create SelfSubjectAccessReviews"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// writeForbidden answers as an API server does where a right is missing.
func writeForbidden(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Forbidden","message":"that is forbidden","code":403}`)
}
