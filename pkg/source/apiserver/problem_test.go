package apiserver

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

// TestEachRefusalOfTheAPIServerHasItsCode: a server of an APIService that is away is no load of the API server.
func TestEachRefusalOfTheAPIServerHasItsCode(t *testing.T) {
	c := &Client{credentials: &credentials{}}
	c.credentials.current.Store(&connections{config: &rest.Config{Host: "https://api"}})
	answer := func(code int32, text string) error {
		return &apierrors.StatusError{ErrStatus: *decode.KnownStatus(&metav1.Status{Code: code, Message: text})}
	}
	for name, test := range map[string]struct {
		err  error
		want condition.Code
	}{
		"too many requests": {answer(http.StatusTooManyRequests, "too many"), condition.APIServerBusy},
		"too much to do":    {answer(http.StatusServiceUnavailable, "apiserver not ready"), condition.APIServerBusy},
		"an APIService":     {answer(http.StatusServiceUnavailable, "service unavailable"), ""},
		"another one":       {answer(http.StatusServiceUnavailable, "error trying to reach service: dial tcp 10.0.0.1:443"), ""},
		"a gateway":         {answer(http.StatusBadGateway, "x"), condition.APIServerUnreachable},
		"no TLS":            {answer(http.StatusBadRequest, "Client sent an HTTP request to an HTTPS server."), condition.APIServerUnreachable},
	} {
		p := c.Problem(test.err)
		if p.Code != test.want || test.want != "" && !strings.Contains(p.Remedy, "https://api") {
			t.Errorf("%s: %+v; want %q", name, p, test.want)
		}
	}
}
