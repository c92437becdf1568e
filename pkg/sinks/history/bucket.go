package history

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// classifyBucket returns what an error of a bucket means to delivery.
func (s *Sink) classifyBucket(failure error) error {
	e := &sinks.UnavailableError{Code: condition.SinkFailing, Reason: fmt.Sprintf("cannot write to %s: %v", s.store, failure),
		Remedy: "see the log of the server"}
	var answer *history.AnswerError
	switch {
	case errors.Is(failure, history.ErrUnconditional):
		e.Code, e.Remedy = condition.SinkMisconfigured, "use a store with conditional writes, or history.dir"
	case errors.Is(failure, fs.ErrNotExist): // a name without a bucket
		e.Code, e.Remedy = condition.SinkMisconfigured, "correct the name in history.bucket, or create the bucket"
	case !errors.As(failure, &answer):
		peer := condition.Peer{Address: "history.bucket", Settings: "ca of history.bucket", Secure: !strings.Contains(s.cfg.Bucket, "endpoint=http:"),
			Other: "change https and http in endpoint of history.bucket"}
		p := peer.Problem(failure)
		e.Code, e.Reason, e.Remedy = p.Code, fmt.Sprintf("%s: %s", s.store, p.Cause), cmp.Or(p.Remedy, e.Remedy)
	case answer.Status == http.StatusServiceUnavailable, answer.Status == http.StatusTooManyRequests:
		e.Code, e.Remedy = condition.SinkBusy, "look at the load and the limits of the server"
	case answer.Status == http.StatusInsufficientStorage, strings.Contains(answer.Code, "Quota"), strings.HasSuffix(answer.Code, "StorageFull"):
		e.Code, e.Remedy = condition.SinkFull, "make room, or keep less: history.keep, history.maxBytes"
	case answer.Status == http.StatusUnauthorized, answer.Status == http.StatusForbidden:
		e.Code, e.Remedy = condition.SinkUnauthorized, "see the keys and their rights: s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject"
	case answer.Status < http.StatusInternalServerError: // no such bucket, or another region
		e.Code, e.Remedy = condition.SinkMisconfigured, "correct the name, the region or the endpoint in history.bucket, or create the bucket"
	}
	return e
}
