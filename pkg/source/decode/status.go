package decode

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A failure has text of what failed: a conversion or admission webhook, an aggregated API server, a proxy. It may quote the
// object that it failed on, and would go to logs and conditions, which show no values. knownTexts are the beginnings of
// texts that API servers themselves write, up to where others may have added theirs.
var knownTexts = []*regexp.Regexp{
	regexp.MustCompile(`^(Internal error occurred: )?storage is \(re\)initializing$`),
	regexp.MustCompile(`^too old resource version: \d+( \(\d+\))?$`),
	regexp.MustCompile(`^(Timeout: )?Too large resource version: \d+, current: \d+$`),
	regexp.MustCompile(`^The provided continue parameter is too old`),
	regexp.MustCompile(`^The resourceVersion for the provided (watch|list) is too old`),
	regexp.MustCompile(`^(the server could not find the requested resource|Unauthorized|Forbidden|Internal Server Error|not found|` +
		`page not found|service unavailable|error trying to reach service|Client sent an HTTP request to an HTTPS server|apiserver not ready|unable to decode an event from the watch stream|` +
		`context (deadline exceeded|canceled)|the server is currently unable to handle the request)`),
	regexp.MustCompile(`^[a-z0-9.-]+( "[a-zA-Z0-9.:-]*")? is forbidden: User "[a-zA-Z0-9.:@_/-]*" cannot [a-z]+ resource "[a-z0-9./-]*"` +
		`( in API group "[a-z0-9.-]*")?( at the cluster scope| in the namespace "[a-z0-9-]*")?`),
	regexp.MustCompile(`^(rpc error: code = [a-zA-Z]+ desc = )?etcdserver: (request timed out|leader changed|no leader|too many requests|not capable|server stopped|` +
		`mvcc: (database space exceeded|required revision has been compacted))`),
	regexp.MustCompile(`^conversion webhook for [a-z0-9./-]+, Kind=[a-zA-Z0-9]+ failed`),
	regexp.MustCompile(`^admission webhook "[a-z0-9.-]+" denied the request`),
	regexp.MustCompile(`^The order in patch list|^Operation cannot be fulfilled on [a-z0-9.]+`),
}

// knownReasons are the reasons of API servers; other servers may choose any text.
var knownReasons = []metav1.StatusReason{
	metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound, metav1.StatusReasonAlreadyExists,
	metav1.StatusReasonConflict, metav1.StatusReasonGone, metav1.StatusReasonInvalid, metav1.StatusReasonServerTimeout,
	metav1.StatusReasonStoreReadError, metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests,
	metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable,
	metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnsupportedMediaType, metav1.StatusReasonInternalError,
	metav1.StatusReasonExpired, metav1.StatusReasonServiceUnavailable,
}

// KnownStatus returns what a failure is, without text that may quote an object: code, reason, kinds of causes, and as
// message a known text.
func KnownStatus(of *metav1.Status) *metav1.Status {
	known := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: of.Code}
	if slices.Contains(knownReasons, of.Reason) {
		known.Reason = of.Reason
	}
	if of.Details != nil {
		known.Details = &metav1.StatusDetails{RetryAfterSeconds: of.Details.RetryAfterSeconds}
		for _, c := range of.Details.Causes {
			if c.Type == metav1.CauseTypeResourceVersionTooLarge {
				known.Details.Causes = append(known.Details.Causes, metav1.StatusCause{Type: c.Type})
			}
		}
	}
	for _, text := range knownTexts {
		if known.Message = text.FindString(of.Message); known.Message != "" {
			return known
		}
	}
	status := strings.TrimSpace(fmt.Sprintf("%d %s", of.Code, known.Reason))
	known.Message = fmt.Sprintf("status %s; its text is left out, because it may quote objects", status)
	return known
}
