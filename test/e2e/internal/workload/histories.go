package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// SelectedLabel is the label that histories set to "yes" or "no", now and then.
const SelectedLabel = "selected"

// Histories returns what random lives to let widgets live.
type Histories struct {
	Namespace      string // must exist
	Objects, Steps int    // names, and writes to each
	Clients        int    // writes at once
	Seed           uint64

	// Wrote receives each write and the revision that the API server answered with, which is the one that was there before
	// if the write changed nothing. Several goroutines call it at once. It may be nil.
	Wrote func(revision string, by Writer)
}

// Writer is the author of a write, as managedFields should name it.
type Writer struct {
	Manager, Operation, Subresource string

	Once bool // this manager writes this object only once
	Sets bool // fields are set, not only removed
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

// history writes one object's life. Impossible writes, such as patching a deleted object, are left out.
func (c *Cluster) history(ctx context.Context, h Histories, n int) error {
	rnd := rand.New(rand.NewPCG(h.Seed, uint64(n)))
	l := life{Histories: h, widgets: c.client.Resource(Widgets.Resource).Namespace(h.Namespace), name: fmt.Sprintf("history-%04d", n), rnd: rnd}
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
	Histories
	widgets dynamic.ResourceInterface
	name    string
	rnd     *rand.Rand
}

func (l *life) step(ctx context.Context, n int) error {
	by := l.writer(n)
	if n == 0 || l.rnd.IntN(6) == 0 { // most often it is there already
		o := Widgets.Object()
		o.SetName(l.name)
		o.SetLabels(map[string]string{SelectedLabel: [...]string{"yes", "yes", "yes", "no"}[l.rnd.IntN(4)]})
		return l.create(ctx, by, o)
	}
	turn := l.rnd.IntN(1 << 30) // no write sets what is there already
	switch l.rnd.IntN(9) {
	case 0:
		return l.patch(ctx, by, types.MergePatchType, map[string]any{"spec": map[string]any{"size": turn, "list": []int{n, n + 1}}})
	case 1:
		return l.patch(ctx, by, types.MergePatchType, map[string]any{"spec": map[string]any{"list": nil, "nested": map[string]any{"deep": turn}}})
	case 2:
		return l.patch(ctx, by, types.JSONPatchType, []any{map[string]any{"op": "add", "path": "/spec/added", "value": fmt.Sprint("é<", turn)}})
	case 3:
		return l.apply(ctx, by, turn)
	case 4:
		by.Subresource = "status"
		return l.patch(ctx, by, types.MergePatchType, map[string]any{"status": map[string]any{"seen": turn}})
	case 5:
		return l.patch(ctx, by, types.MergePatchType, metadata("labels", map[string]any{
			SelectedLabel: [...]string{"yes", "no"}[l.rnd.IntN(2)], "turn": fmt.Sprint(turn),
		}))
	case 6:
		return l.patch(ctx, by, types.MergePatchType, metadata("finalizers", []string{fmt.Sprint("example.org/", turn)}))
	case 7:
		by.Sets = false
		return l.patch(ctx, by, types.MergePatchType, metadata("finalizers", nil))
	}
	_, err := answered(ctx, func() (*unstructured.Unstructured, error) {
		return nil, l.widgets.Delete(ctx, l.name, metav1.DeleteOptions{})
	})
	return err
}

// answered makes a write again until there is an answer of it: the API server gives up what takes a busy machine too long,
// and it is unknown then whether it was done. A write that was is answered with the revision that it has made, as long as
// there is no other writer of the object.
func answered(ctx context.Context, write func() (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	for {
		made, err := write()
		if err == nil || isAnswer(err) {
			return made, err
		}
		if err := pause(ctx, err); err != nil {
			return nil, err
		}
	}
}

// isAnswer reports whether an error is an answer to the write, and not a sign that the API server is unavailable.
func isAnswer(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err)
}

func metadata(member string, value any) map[string]any {
	return map[string]any{"metadata": map[string]any{member: value}}
}

// writer is a manager of one write alone, or one of two that write again and again.
func (l *life) writer(n int) Writer {
	by := Writer{Manager: fmt.Sprintf("writer-%x-%d", l.Seed, n), Operation: "Update", Once: true, Sets: true}
	if l.rnd.IntN(3) == 0 {
		by.Manager, by.Once = fmt.Sprintf("controller-%d", l.rnd.IntN(2)), false
	}
	return by
}

// wrote reports a write.
func (l *life) wrote(o *unstructured.Unstructured, by Writer, err error) error {
	if err == nil && l.Wrote != nil {
		l.Wrote(o.GetResourceVersion(), by)
	}
	return err
}

func (l *life) patch(ctx context.Context, by Writer, how types.PatchType, patch any) error {
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	var subresources []string
	if by.Subresource != "" {
		subresources = append(subresources, by.Subresource)
	}
	made, err := answered(ctx, func() (*unstructured.Unstructured, error) {
		return l.widgets.Patch(ctx, l.name, how, text, metav1.PatchOptions{FieldManager: by.Manager}, subresources...)
	})
	return l.wrote(made, by, err)
}

// create creates an object. One that is there already, though an answer was lost, is the one that was created: nobody else
// writes to it.
func (l *life) create(ctx context.Context, by Writer, o *unstructured.Unstructured) error {
	lost := false
	made, err := answered(ctx, func() (*unstructured.Unstructured, error) {
		made, err := l.widgets.Create(ctx, o, metav1.CreateOptions{FieldManager: by.Manager})
		if lost && apierrors.IsAlreadyExists(err) {
			made, err = l.widgets.Get(ctx, l.name, metav1.GetOptions{})
		}
		lost = lost || err != nil && !isAnswer(err)
		return made, err
	})
	return l.wrote(made, by, err)
}

// apply is a server-side apply. It creates what is not there.
func (l *life) apply(ctx context.Context, by Writer, turn int) error {
	by.Operation = "Apply"
	o := Widgets.Object()
	o.Object["spec"] = map[string]any{"applied": fmt.Sprint(turn)}
	o.SetName(l.name)
	made, err := answered(ctx, func() (*unstructured.Unstructured, error) {
		return l.widgets.Apply(ctx, l.name, o, metav1.ApplyOptions{FieldManager: by.Manager, Force: true})
	})
	return l.wrote(made, by, err)
}
