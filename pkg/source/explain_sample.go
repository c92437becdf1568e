package source

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Sample lists at most limit objects of a scope and gives each, as JSON without metadata.managedFields, to take. Nothing is kept.
func (c *Client) Sample(ctx context.Context, s selection.Scope, limit int64, take func(object []byte)) error {
	e, err := c.endpoint(s)
	if err != nil {
		return err
	}
	_, err = e.list(ctx, nil, metav1.ListOptions{Limit: limit}, func(o *deltas.Object) error {
		if s.Filter == nil || s.Filter(o.Namespace) {
			take(o.Raw)
		}
		return nil
	})
	if err != nil {
		return errors.New(reason(err))
	}
	return nil
}
