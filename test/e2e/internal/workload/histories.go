package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// SelectedLabel is the label that histories set to "yes" or "no", now and then.
const SelectedLabel = "selected"

// Histories says what random lives to let widgets live.
type Histories struct {
	Namespace      string // must exist
	Objects, Steps int    // names, and writes to each
	Clients        int    // writes at once
	Seed           uint64
}

// Live lets widgets live: they are created, patched in every way, given a status and finalizers, deleted, and created
// again under the same name. It returns when all is written.
func (c *Cluster) Live(ctx context.Context, h Histories) error {
	numbers := make(chan int)
	errs := make([]error, h.Clients)
	var clients sync.WaitGroup
	for i := range h.Clients {
		clients.Go(func() {
			for n := range numbers {
				if errs[i] == nil {
					errs[i] = c.history(ctx, h, n)
				}
			}
		})
	}
	for n := range h.Objects {
		numbers <- n
	}
	close(numbers)
	clients.Wait()
	return errors.Join(errs...)
}

// history writes one object's life. What the API server finds impossible, such as patching what is gone, is left out.
func (c *Cluster) history(ctx context.Context, h Histories, n int) error {
	rnd := rand.New(rand.NewPCG(h.Seed, uint64(n)))
	l := life{c.client.Resource(Widgets.Resource).Namespace(h.Namespace), fmt.Sprintf("history-%04d", n), rnd}
	for step := range h.Steps {
		err := l.step(ctx, step)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
			return fmt.Errorf("%s, step %d: %w", l.name, step, err)
		}
	}
	return nil
}

// life is one object under work.
type life struct {
	widgets dynamic.ResourceInterface
	name    string
	rnd     *rand.Rand
}

func (l life) step(ctx context.Context, n int) error {
	if n == 0 || l.rnd.IntN(6) == 0 { // most often it is there already
		o := Widgets.Object()
		o.SetName(l.name)
		o.SetLabels(map[string]string{SelectedLabel: [...]string{"yes", "yes", "yes", "no"}[l.rnd.IntN(4)]})
		_, err := l.widgets.Create(ctx, o, metav1.CreateOptions{})
		return err
	}
	switch l.rnd.IntN(9) {
	case 0:
		return l.patch(ctx, types.MergePatchType, map[string]any{"spec": map[string]any{"size": n, "list": []int{n, n + 1}}})
	case 1:
		return l.patch(ctx, types.MergePatchType, map[string]any{"spec": map[string]any{"list": nil, "nested": map[string]any{"deep": n}}})
	case 2:
		return l.patch(ctx, types.JSONPatchType, []any{map[string]any{"op": "add", "path": "/spec/added", "value": fmt.Sprint("é<", n)}})
	case 3:
		return l.apply(ctx, n)
	case 4:
		return l.patch(ctx, types.MergePatchType, map[string]any{"status": map[string]any{"seen": n}}, "status")
	case 5:
		return l.patch(ctx, types.MergePatchType, map[string]any{"metadata": map[string]any{"labels": map[string]any{SelectedLabel: [...]string{"yes", "no"}[l.rnd.IntN(2)]}}})
	case 6:
		return l.patch(ctx, types.MergePatchType, map[string]any{"metadata": map[string]any{"finalizers": []string{"example.org/wait"}}})
	case 7:
		return l.patch(ctx, types.MergePatchType, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	}
	return l.widgets.Delete(ctx, l.name, metav1.DeleteOptions{})
}

func (l life) patch(ctx context.Context, how types.PatchType, patch any, subresources ...string) error {
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = l.widgets.Patch(ctx, l.name, how, text, metav1.PatchOptions{}, subresources...)
	return err
}

// apply is a server-side apply by a manager of its own. It creates what is not there.
func (l life) apply(ctx context.Context, n int) error {
	o := Widgets.Object()
	o.Object["spec"] = map[string]any{"applied": fmt.Sprint(n)}
	o.SetName(l.name)
	_, err := l.widgets.Apply(ctx, l.name, o, metav1.ApplyOptions{FieldManager: "applier", Force: true})
	return err
}
