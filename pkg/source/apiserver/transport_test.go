package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

func TestOneSecondIsNoClockSkew(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct{ now, want time.Duration }{
		{0, 0}, {900 * time.Millisecond, 0}, {time.Hour + time.Second, time.Hour}, {-time.Hour, -time.Hour},
	} {
		if got := clockSkewAt(at.Add(c.now), at); got != c.want {
			t.Errorf("%v ahead of the date: %v, want %v", c.now, got, c.want)
		}
	}
}

// TestTextOfOthersIsLeftOut has each request fail with a value in each member of a Status that others can write, in text
// that is no Status, and in an event of a watch. What is known of the failure is kept.
func TestTextOfOthersIsLeftOut(t *testing.T) {
	const value, status = "hunter2", `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":%q,"code":%d,` +
		`"details":{"name":"hunter2","kind":"hunter2","causes":[{"reason":"hunter2","message":"hunter2","field":"hunter2"}]}}`
	for name, c := range map[string]struct {
		code int
		body string
		want string // in the text
	}{
		"conversion": {500, fmt.Sprintf(status, `conversion webhook for a.example/v1, Kind=Thing failed: cannot convert "hunter2"`, "", 500),
			"conversion webhook for a.example/v1, Kind=Thing failed"},
		"admission": {400, fmt.Sprintf(status, `admission webhook "a.example" denied the request: hunter2`, "BadRequest", 400),
			`admission webhook "a.example" denied the request`},
		"aggregated":       {422, fmt.Sprintf(status, "hunter2 is invalid", "Invalid", 422), "422 Invalid"},
		"reason":           {500, fmt.Sprintf(status, "", "hunter2", 500), "500"},
		"forbidden":        {403, fmt.Sprintf(status, `things.a.example is forbidden: User "system:serviceaccount:a:b" cannot list resource "things" in API group "a.example" at the cluster scope: hunter2`, "Forbidden", 403), `User "system:serviceaccount:a:b" cannot list resource "things" in API group "a.example" at the cluster scope`},
		"too old":          {410, fmt.Sprintf(status, "too old resource version: 1 (2)", "Expired", 410), "too old resource version: 1 (2)"},
		"text":             {500, "hunter2", "an error on the server"},
		"another kind":     {503, `{"kind":"Thing","message":"hunter2"}`, "currently unable to handle"},
		"event of a watch": {200, `{"type":"ERROR","object":` + fmt.Sprintf(status, "hunter2", "hunter2", 500) + "}\n", "status 500"},
		"malformed event":  {200, `{"type":"ERROR","object":{"kind":"Status","code":"hunter2"}}` + "\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			client, err := NewClient(&rest.Config{Host: server.URL}, "test")
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			e, err := client.Endpoint(selection.Scope{Resource: event.Resource{Group: "a.example", Version: "v1", Resource: "things", Kind: "Thing"}})
			if err != nil {
				t.Fatal(err)
			}
			var all []error
			if c.code != http.StatusOK {
				_, err := e.List(t.Context(), nil, metav1.ListOptions{}, nil, func(*deltas.Object) error { return nil })
				_, failed := client.ListText(t.Context(), "a.example", "v1", "things", "")
				all = append(all, err, failed)
			}
			connection, err := e.Watch(t.Context(), nil, metav1.ListOptions{})
			if err == nil {
				defer connection.Stop()
				for err == nil {
					_, err = connection.Next(t.Context(), time.Minute)
				}
			}
			all = append(all, err)
			for _, err := range all {
				if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, errors.Unwrap(err)), value) || !strings.Contains(Reason(err), c.want) {
					t.Errorf("%v; it has to contain %q, and no value", err, c.want)
				}
			}
		})
	}
}
