package apiserver

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Verdict is what a failure means for the history of a scope.
type Verdict int

// The verdicts.
const (
	// Interrupted: try again from the same place. Everything that is not positively something else.
	Interrupted Verdict = iota
	// Expired: the API server no longer has the history from here on (410).
	Expired
	// TooLarge: this API server has not reached the position. It lags behind, or etcd was restored from a backup.
	TooLarge
	// Refused: the API server does not know this kind of request; another kind may do.
	Refused
	// Forbidden: this program may not do that.
	Forbidden
	// NotServed: nothing serves this resource, or no more.
	NotServed
	// Starting: the API server is filling its cache of this resource, as it does when it starts and when a definition was
	// just established.
	Starting
)

// initializingMessage is what the API server's cache says of itself until it is filled, with status 429; before Kubernetes 1.29
// also with 500.
const initializingMessage = "storage is (re)initializing"

// Classify says what a failure means.
func Classify(err error) Verdict {
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return Expired
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return TooLarge
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

// Reason says in few words what went wrong: without the URL, which the scope says better.
func Reason(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}

// DeniedError is a 403 with the verb it was the answer to.
type DeniedError struct {
	Verb string
	Err  error
}

// Error says which right is missing. The object that a question was about may not exist and is left out.
func (e *DeniedError) Error() string { return e.Verb + " is forbidden: " + WithoutObject(e.Err) }
func (e *DeniedError) Unwrap() error { return e.Err }

// WithoutObject is what the API server says of a refusal, without the name of the object that it was about.
func WithoutObject(err error) string {
	text := err.Error()
	if _, missing, found := strings.Cut(text, " is forbidden: "); found {
		return missing
	}
	return text
}

// wrapDenied adds the verb to err where that is a 403.
func wrapDenied(verb string, err error) error {
	if Classify(err) != Forbidden {
		return err
	}
	return &DeniedError{verb, err}
}
