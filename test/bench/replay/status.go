package replay

import (
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// status is the body of an error.
type status = metav1.Status

func newStatus(code int32, reason metav1.StatusReason, message string) *status {
	return &status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}
}

func notFound() *status {
	return newStatus(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

func badRequest(err error) *status {
	return newStatus(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
}

func tooOld(rv, oldest uint64) *status {
	return newStatus(http.StatusGone, metav1.StatusReasonExpired, fmt.Sprintf("too old resource version: %d (%d)", rv, oldest))
}

func tooLarge(rv, current uint64) *status {
	s := newStatus(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
		fmt.Sprintf("Timeout: Too large resource version: %d, current: %d", rv, current))
	s.Details = &metav1.StatusDetails{
		RetryAfterSeconds: 1,
		Causes:            []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}},
	}
	return s
}

func writeStatus(w http.ResponseWriter, s *status) { writeJSON(w, int(s.Code), "application/json", s) }

// writeJSON answers with a small body. A client that has gone is no concern.
func writeJSON(w http.ResponseWriter, code int, contentType string, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(code)
	_, _ = w.Write(text)
}
