package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	authorization "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// permission says whether something may be done.
type permission string

const (
	allowed permission = "allowed"
	denied  permission = "forbidden"
	unknown permission = "unknown" // the API server did not say
)

// access says whether the credentials in use may read a scope; both verbs are needed to watch it.
type access struct {
	list, watch permission
	reason      string // why one of them is not allowed, as far as the API server says; may be empty
}

// queryAccess asks the API server what the credentials in use may read: two SelfSubjectAccessReviews a scope, which by default
// everyone may create. The answers are in the order of the scopes. That the API server does not answer is unknown, with
// the reason. It returns when all answers are there or ctx ends.
func queryAccess(ctx context.Context, client *apiserver.Client, scopes []selection.Scope) ([]access, error) {
	all := make([]access, len(scopes))
	inParallel(len(scopes), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, apiserver.RequestTimeout)
		defer cancel()
		all[i].list = reviewVerb(ctx, client, "list", scopes[i], &all[i].reason)
		all[i].watch = reviewVerb(ctx, client, "watch", scopes[i], &all[i].reason)
	})
	return all, ctx.Err()
}

// reviewVerb asks whether a scope may be read with a verb, and says in reason why not.
func reviewVerb(ctx context.Context, client *apiserver.Client, verb string, s selection.Scope, reason *string) permission {
	answer, err := createAccessReview(ctx, client, &authorization.ResourceAttributes{
		Verb: verb, Group: s.Resource.Group, Version: s.Resource.Version, Resource: s.Resource.Resource,
		Namespace: s.Namespace, Name: s.ObjectName(),
	})
	switch {
	case apierrors.IsForbidden(err):
		*reason = "these credentials may not create SelfSubjectAccessReviews"
		return unknown
	case err != nil:
		*reason = apiserver.Reason(err)
		return unknown
	case !answer.Allowed:
		*reason = answer.Reason
		return denied
	}
	return allowed
}

// createAccessReview creates an access review. A plain client does: the generated one would bring in modules for one request.
func createAccessReview(
	ctx context.Context, client *apiserver.Client, what *authorization.ResourceAttributes,
) (s authorization.SubjectAccessReviewStatus, err error) {
	reviews, err := client.REST(schema.GroupVersion{Group: authorization.GroupName, Version: "v1"})
	if err != nil {
		return s, err
	}
	question, err := json.Marshal(authorization.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec:     authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: what},
	})
	if err != nil {
		return s, err
	}
	body, err := reviews.Post().Resource("selfsubjectaccessreviews").SetHeader("Content-Type", "application/json").
		Body(question).MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return s, err
	}
	var answer authorization.SelfSubjectAccessReview
	if err := json.Unmarshal(body, &answer); err != nil {
		return s, fmt.Errorf("the answer to an access review: %w", err)
	}
	return answer.Status, nil
}

// maxParallel bounds how many scopes are asked about at the same time.
const maxParallel = 8

// inParallel calls do with 0 to n-1 and waits for all.
func inParallel(n int, do func(int)) {
	slots := make(chan struct{}, maxParallel)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	all.Wait()
}
