package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

const (
	// pageBytes is the size that pages are aimed at. Objects are handled as they arrive, so the size does not bound our
	// memory but that of API servers before Kubernetes 1.33, which encode a page as a whole.
	pageBytes = 4 << 20
	// firstPage is the number of objects requested before their size is known; maxPage bounds later pages, and maxPageGrowth
	// the growth from one page to the next, because the first objects may be smaller than the others.
	firstPage, maxPage, maxPageGrowth = 100, 5000, 8
)

const (
	// maxRestarts is how often one attempt begins again with the first page before it does without pages.
	maxRestarts = 2
	// maxPageFailures is how often a page may fail in succession until that counts as the failure of its token.
	maxPageFailures = 3
)

// errSamePage means that a server answers a continue token with the page that the token came with.
var errSamePage = errors.New("the API server repeats the first page of a list")

// reader reads all objects of a scope, whatever for: the first start, lost history, edited rules, a resync, missing bodies.
// It is used by one goroutine.
//
// It reads pages. A page that is interrupted is requested again by its continue token. If the token has expired, the one
// in the error continues after the same object (KEP-365). If that does not work either, the pages are read again, and if
// tokens keep expiring, or the server refuses pages, everything is read in one list. Later parts of a reading may therefore
// be newer than its first page. A watch from the version of the first page delivers what happened in between, and
// deltas.Step ignores versions that are older than what is known.
type reader struct {
	api  *scopeClient
	slot *apiserver.Slot // bounds how many scopes read at once
	most int64           // objects per page
	// recordHeld reports why nothing may be emitted. It does not block.
	recordHeld func(condition.Problem)
	signaled   <-chan struct{} // ends such a wait; may be nil
	// recordFailure reports a failed request, or one that is slow. It does not block.
	recordFailure func(error)
	// handleFailure is recordFailure, and waits until the next request is due. Its error ends the reading.
	handleFailure func(context.Context, error) error
	recordSuccess func() // is called after each page

	recheck clusterRecheck // since the last failure
}

// visitor receives the objects of a reading. Its methods may block; their errors end the reading.
type visitor interface {
	// begin is called before the first object of each attempt, with the version that the list is consistent at.
	begin(position string) error
	// visit owns the object. An object may be visited again.
	visit(ctx context.Context, o *deltas.Object) error
	// endPage is called after each page, with the number of its objects and whether there is another page.
	endPage(ctx context.Context, objects int, more bool) error
}

// errNotExact means that the API server cannot list objects at an exact version.
var errNotExact = errors.New("the API server does not list objects at an exact version")

// read passes everything that the scope selects to v: at an exact version, or at the newest one if at is "". It returns the
// version of the first page, and that of the newest if that is another one. It tries until a reading is complete. The slot
// is the caller's to release. Errors are those of ctx, of v and of handleFailure, and if at is not "", those that mean that
// the version is not available, see isUnavailable.
func (r *reader) read(ctx context.Context, at string, v visitor) (position, aheadUpTo string, err error) {
	for {
		if err := r.slot.Acquire(ctx); err != nil {
			return "", "", err
		}
		a := &attempt{reader: r, at: at, visitor: v}
		err := a.readPages(ctx)
		if err == nil || ctx.Err() != nil || isAppendError(err) || at != "" && isUnavailable(err) {
			return a.position, a.aheadUpTo, err
		}
		r.slot.Release() // a type that fails does not block the lists of others
		if err := r.recover(ctx, err); err != nil {
			return "", "", err
		}
	}
}

func isAppendError(err error) bool {
	var failed *appendError
	return errors.As(err, &failed)
}

// isUnavailable reports whether an error means that an exact version cannot be listed, now or ever.
func isUnavailable(err error) bool {
	v := apiserver.Classify(err)
	return errors.Is(err, errNotExact) || v == apiserver.Expired || v == apiserver.Refused || v == apiserver.TooLarge
}

// recover reports a failed request and waits before the next one, which another cluster may answer.
func (r *reader) recover(ctx context.Context, err error) error {
	r.recheck = recheckAfter(err)
	return r.handleFailure(ctx, err)
}

// attempt is one attempt to read everything.
type attempt struct {
	*reader
	visitor visitor
	at      string

	begun     bool
	position  string // of the first page, once begun
	aheadUpTo string // version of the last page, if it is another one; an object may have been read at that version
	limit     int64  // of the next page; 0 before the first
	noPages   error  // why everything is read in one list; nil for pages
	restarts  int    // how often the first page was requested again because a continue token had expired
}

func (a *attempt) readPages(ctx context.Context) error {
	o, renewed, failures := a.firstRequest(), false, 0 // renewed: the token is one that an error contained
	for {
		meta, err := a.readPage(ctx, o)
		if err == nil && meta.Continue != "" && meta.Continue == o.Continue {
			err = errSamePage
		}
		v, first := apiserver.Classify(err), o.Continue == ""
		switch {
		case err == nil && meta.Continue == "":
			a.learnPages(o)
			return nil
		case err == nil:
			o, renewed, failures = metav1.ListOptions{Limit: a.limit, Continue: meta.Continue}, false, 0
		case ctx.Err() != nil, isAppendError(err), a.at != "" && isUnavailable(err), first && (o.Limit == 0 || !apiserver.IsRefusal(err)):
			return err // an interrupted first page cannot be continued
		case first:
			a.noPages = err
			o = a.firstRequest()
		case v != apiserver.Expired && v != apiserver.Refused && !errors.Is(err, errSamePage) && failures < maxPageFailures:
			failures++
			if err := a.recover(ctx, err); err != nil {
				return err
			}
		default:
			a.recheck = recheckAfter(err)
			if token := continueTokenOf(err); token != "" && !renewed {
				o.Continue, renewed = token, true
			} else if a.restarts++; a.restarts > maxRestarts+1 {
				return err
			} else {
				if v != apiserver.Expired && !apiserver.IsUnanswered(err) {
					a.noPages = err
				}
				o, renewed, failures = a.firstRequest(), false, 0
			}
		}
	}
}

// learnPages records whether the server has pages, after the last request.
func (a *attempt) learnPages(last metav1.ListOptions) {
	switch ways := a.api.endpoint.Load().Ways; {
	case a.noPages != nil:
		ways.Learn(apiserver.Pages, a.noPages)
	case last.Continue != "":
		ways.Learn(apiserver.Pages, nil)
	}
}

// firstRequest returns the options of the first page; without a limit if the server has no pages, or continue tokens have
// expired too often.
func (a *attempt) firstRequest() metav1.ListOptions {
	var o metav1.ListOptions
	if a.restarts <= maxRestarts && a.noPages == nil && a.api.endpoint.Load().Ways.Has(apiserver.Pages) {
		o.Limit = cmp.Or(a.limit, min(firstPage, a.most))
	}
	if a.at != "" {
		o.ResourceVersion, o.ResourceVersionMatch = a.at, metav1.ResourceVersionMatchExact
	}
	return o
}

// continueTokenOf returns the token in the error that reports an expired one; "" if there is none.
func continueTokenOf(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}

// readPage reads one page, or everything if o has no limit.
func (a *attempt) readPage(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) {
	if err := a.awaitAdmission(ctx); err != nil {
		return metav1.ListMeta{}, err
	}
	if err := a.api.identity.confirmCluster(ctx, a.recheck); err != nil {
		return metav1.ListMeta{}, err
	}
	a.api.health.updateCounters(func(st *Status) { st.Lists++ })
	var early []*deltas.Object // objects that came before the metadata of the first page
	begin := func(meta metav1.ListMeta) error {
		if a.begun {
			return nil
		}
		if a.at != "" && meta.ResourceVersion != a.at {
			return errNotExact
		}
		if err := checkWatchable(meta.ResourceVersion); err != nil { // it would be read again and again
			return err
		}
		a.begun, a.position = true, meta.ResourceVersion
		if err := a.visitor.begin(a.position); err != nil {
			return err
		}
		for _, object := range early {
			if err := a.visitor.visit(ctx, object); err != nil {
				return err
			}
		}
		return nil
	}
	objects, bytes := 0, 0
	meta, err := a.api.endpoint.Load().List(ctx, a.slot, o, begin, func(object *deltas.Object) error {
		objects, bytes = objects+1, bytes+len(object.Raw)
		if !a.begun {
			early = append(early, object)
			return nil
		}
		return a.visitor.visit(ctx, object)
	})
	if err == nil {
		err = begin(meta) // in case that the list has no metadata
	}
	if err == nil {
		a.recordSuccess()
		if meta.ResourceVersion != "" && meta.ResourceVersion != a.position {
			a.aheadUpTo = meta.ResourceVersion
		}
		a.limit = a.nextLimit(max(o.Limit, int64(objects)), objects, bytes)
		err = a.visitor.endPage(ctx, objects, meta.Continue != "")
	}
	return meta, err
}

// awaitAdmission waits until what is read may be emitted, without the slot.
func (a *attempt) awaitAdmission(ctx context.Context) error {
	_, err := a.api.awaitAdmission(ctx, func(p condition.Problem) {
		a.slot.Release()
		a.recordHeld(p)
	}, a.signaled)
	if err != nil {
		return err
	}
	return a.slot.Acquire(ctx)
}

// checkWatchable rejects the version of a list that no watch can begin at.
func checkWatchable(position string) error {
	if !apiserver.IsPosition(position) {
		return fmt.Errorf("the API server lists objects at a resourceVersion (%q) that cannot be watched from", position)
	}
	return nil
}

// nextLimit returns the limit of the page after one that had this limit and content.
func (a *attempt) nextLimit(limit int64, objects, bytes int) int64 {
	if objects > 0 {
		limit = min(limit*maxPageGrowth, int64(pageBytes/max(1, bytes/objects)))
	}
	return max(1, min(limit, a.most))
}
