package source

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Sample lists at most limit objects of a scope and gives each, as JSON without metadata.managedFields, to take. Nothing is kept.
func (c *Client) Sample(ctx context.Context, s Scope, limit int64, take func(object []byte)) error {
	e, err := c.endpoint(s)
	if err != nil {
		return err
	}
	l, err := e.list(ctx, metav1.ListOptions{Limit: limit})
	if err != nil {
		return errors.New(reason(err))
	}
	for _, o := range l.Items {
		if s.Filter == nil || s.Filter(o.Namespace) {
			take(o.Raw)
		}
	}
	return nil
}
