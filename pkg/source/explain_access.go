package source

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	authorization "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Permission says whether something may be done.
type Permission string

// The permissions.
const (
	Allowed Permission = "allowed"
	Denied  Permission = "forbidden"
	Unknown Permission = "unknown" // the API server did not say
)

// Access says whether the credentials in use may read a scope; both are needed to watch it.
type Access struct {
	List, Watch Permission
	Reason      string // why one of them is not allowed, as far as the API server says; may be empty
}

// Access asks the API server what the credentials in use may read: two SelfSubjectAccessReviews a scope, which by default
// everyone may create. The answers are in the order of the scopes. That the API server does not answer is Unknown, with
// the reason. It returns when all answers are there or ctx ends.
func (c *Client) Access(ctx context.Context, scopes []selection.Scope) ([]Access, error) {
	client, err := c.reviewer()
	if err != nil {
		return nil, err
	}
	all := make([]Access, len(scopes))
	inParallel(len(scopes), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		all[i] = review(ctx, client, scopes[i])
	})
	return all, ctx.Err()
}

// reviewer creates access reviews. A plain client does: the generated one would bring in modules for one request.
func (c *Client) reviewer() (rest.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.APIPath, config.GroupVersion = "/apis", &schema.GroupVersion{Group: authorization.GroupName, Version: "v1"}
	config.NegotiatedSerializer = statuses
	client, err := rest.RESTClientForConfigAndClient(config, c.http)
	if err != nil {
		return nil, fmt.Errorf("client for access reviews: %w", err)
	}
	return client, nil
}

func review(ctx context.Context, client rest.Interface, s selection.Scope) Access {
	var a Access
	for _, verb := range []string{"list", "watch"} {
		permission := &a.List
		if verb == "watch" {
			permission = &a.Watch
		}
		answer, err := mayI(ctx, client, &authorization.ResourceAttributes{
			Verb: verb, Group: s.Resource.Group, Version: s.Resource.Version, Resource: s.Resource.Resource,
			Namespace: s.Namespace, Name: s.Name(),
		})
		switch {
		case apierrors.IsForbidden(err):
			*permission, a.Reason = Unknown, "these credentials may not create SelfSubjectAccessReviews"
		case err != nil:
			*permission, a.Reason = Unknown, reason(err)
		case answer.Allowed:
			*permission = Allowed
		default:
			*permission, a.Reason = Denied, answer.Reason
		}
	}
	return a
}

func mayI(ctx context.Context, client rest.Interface, what *authorization.ResourceAttributes) (authorization.SubjectAccessReviewStatus, error) {
	review := authorization.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec:     authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: what},
	}
	question, err := json.Marshal(review)
	if err != nil {
		return review.Status, err
	}
	answer, err := client.Post().Resource("selfsubjectaccessreviews").SetHeader("Content-Type", "application/json").
		Body(question).MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return review.Status, err
	}
	err = json.Unmarshal(answer, &review)
	return review.Status, err
}

// inParallel calls do with 0 to n-1, as many at a time as lists may be read, and waits for all.
func inParallel(n int, do func(int)) {
	slots := make(chan struct{}, concurrentLists)
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
