package apiserver

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Verdict is what a failure means for the history of a scope.
type Verdict int

// The verdicts.
const (
	// Interrupted: retry from the same position. Every failure without a more specific verdict.
	Interrupted Verdict = iota
	// Expired: the API server no longer has the history after the position (410).
	Expired
	// TooLarge: the API server has not reached the position. It lags behind, or etcd was restored from a backup.
	TooLarge
	// Refused: the API server does not support this kind of request; another kind may work.
	Refused
	// Unauthenticated: the API server does not accept the credentials (401).
	Unauthenticated
	// Forbidden: the program has no right to do this (403).
	Forbidden
	// NotServed: the resource is not served, or no longer (404).
	NotServed
	// Starting: the API server is filling its cache of this resource, as it does at its start and after a definition is
	// established.
	Starting
)

// initializingMessage is the error of the API server's cache until it is filled, with status 429; before Kubernetes 1.29
// also with 500. With a suffix (": …") it reports why the cache cannot be filled, which is not a start.
const initializingMessage = "storage is (re)initializing"

// Classify returns the verdict for an error of this package; nil is Interrupted.
func Classify(err error) Verdict {
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return Expired
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return TooLarge
	case apierrors.IsUnauthorized(err):
		return Unauthenticated
	case apierrors.IsForbidden(err):
		return Forbidden
	case apierrors.IsNotFound(err):
		return NotServed
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		switch status.Status().Code {
		case http.StatusTooManyRequests, http.StatusInternalServerError:
			message := status.Status().Message
			if strings.Contains(message, initializingMessage) && !strings.Contains(message, initializingMessage+": ") {
				return Starting
			}
		case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
			http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
			return Refused
		}
	}
	return Interrupted
}

// IsRefusal reports whether a server answers a kind of request with an error, so that another kind may work: one that does
// not support it may say so with any status but those that have a meaning of their own.
func IsRefusal(err error) bool {
	var status apierrors.APIStatus
	v := Classify(err)
	return v == Refused || v == Interrupted && errors.As(err, &status) && !IsUnanswered(err) && !apierrors.IsTooManyRequests(err)
}

// IsUnanswered reports whether a request failed because the API server gave no response, or a proxy or load balancer gave
// one for it.
func IsUnanswered(err error) bool {
	var u *url.Error
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout
	}
	return errors.As(err, &u) || errors.As(err, new(*lostError)) || errors.Is(err, ErrSlow) || errors.Is(err, errNoAnswer)
}

// Reason returns the message of an error without the URL: the scope in the status describes the request better.
func Reason(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}

// Problem returns what an error says about the API server as a whole: that it cannot be reached, does not accept the
// certificate or the credentials, or has too much to do. The zero value means that it answers other requests.
func (c *Client) Problem(err error) condition.Problem {
	host := c.Host()
	var status apierrors.APIStatus
	var code int32
	if errors.As(err, &status) {
		code = status.Status().Code
	}
	p := condition.Problem{}
	switch {
	case Classify(err) == Unauthenticated, strings.HasPrefix(Reason(err), "getting credentials: "): // of the program of the kubeconfig
		return condition.Problem{Code: condition.CredentialsRefused, Cause: Reason(err)}
	case code == http.StatusBadRequest && strings.Contains(err.Error(), "HTTP request to an HTTPS server"):
		p = peer(false).Problem(tls.RecordHeaderError{Msg: "it answers 400"})
	case code == http.StatusTooManyRequests && Classify(err) != Starting, code == http.StatusServiceUnavailable && !isServiceAway(status):
		return condition.Problem{
			Code: condition.APIServerBusy, Cause: fmt.Sprintf("the API server answers %d: %s", code, Reason(err)),
			Remedy: "look at the load of the API server at " + host + ", and at the priority and fairness of this account's requests (flow schemas)",
		}
	case code == http.StatusServiceUnavailable, !IsUnanswered(err):
		return p
	case code != 0:
		p = condition.Problem{Code: condition.APIServerUnreachable, Cause: fmt.Sprintf("a proxy answers %d in its place", code)}
	default:
		p = peer(!strings.HasPrefix(host, "http:")).Problem(err)
	}
	if p.Code == condition.APIServerUnreachable {
		p.Remedy = "look at the API server at " + host + ": " + cmp.Or(p.Remedy, "whether it runs, its load, and proxies before it")
	}
	return p
}

// peer is what the client connects to, with TLS or without.
func peer(secure bool) condition.Peer {
	p := condition.Peer{Address: "the kubeconfig", Settings: "the kubeconfig", Secure: secure, Other: "write https:// in the kubeconfig", APIServer: true}
	if secure {
		p.Other = "write http:// in the kubeconfig, if it is to be read in cleartext"
	}
	return p
}

// isServiceAway reports whether the API server answers that the server of an APIService is away: it has no load itself.
func isServiceAway(answer apierrors.APIStatus) bool {
	status := answer.Status()
	away := strings.Contains(status.Message, "error trying to reach service") || strings.HasPrefix(status.Message, "service unavailable")
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			away = away || strings.TrimSpace(cause.Message) == "service unavailable"
		}
	}
	return away
}

// DeniedError is a 403, with the verb of the request.
type DeniedError struct {
	Verb string
	Err  error
}

// Error describes the missing right, without the object of the request, which may not exist.
func (e *DeniedError) Error() string { return e.Verb + " is forbidden: " + WithoutObject(e.Err) }
func (e *DeniedError) Unwrap() error { return e.Err }

// WithoutObject returns the API server's message for a refusal, without the name of the object.
func WithoutObject(err error) string {
	text := err.Error()
	if _, missing, found := strings.Cut(text, " is forbidden: "); found {
		return missing
	}
	return text
}

// wrapDenied adds the verb to a 403 and returns other errors as they are.
func wrapDenied(verb string, err error) error {
	if Classify(err) != Forbidden {
		return err
	}
	return &DeniedError{verb, err}
}
