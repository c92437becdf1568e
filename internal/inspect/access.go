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

// permission is the result of an access review.
type permission string

const (
	allowed permission = "allowed"
	denied  permission = "forbidden"
	unknown permission = "unknown" // the API server did not answer the review
)

// access is the permission of the current credentials to read a scope; both verbs are needed to watch it.
type access struct {
	list, watch permission
	reason      string // why one of them is not allowed; empty if the API server gives no reason
}

// queryAccess queries the permissions of the current credentials: two SelfSubjectAccessReviews per scope, which every
// account may create by default. The results are in the order of the scopes. Without an answer the permission is unknown,
// with the reason. It returns when all results are there or ctx ends.
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

// reviewVerb returns the permission to use a verb on a scope, and sets reason if it is not allowed.
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

// createAccessReview creates an access review. It uses a plain REST client, because the generated client would add modules
// for one request.
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
		return s, fmt.Errorf("access review: %w", err)
	}
	return answer.Status, nil
}

// maxParallel bounds the number of concurrent requests.
const maxParallel = 8

// inParallel calls do with 0 to n-1, at most maxParallel at once, and waits for all.
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
