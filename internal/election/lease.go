package election

import (
	"context"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// leaseClient reads and writes one Lease. Each call is one request.
type leaseClient struct {
	client          rest.Interface
	namespace, name string
	requestTimeout  time.Duration // of one request: the API server may accept and never answer
}

// codecs serializes Leases and the errors of the API server only. client-go's leader election imports all types of
// Kubernetes, which would be a third of the binary.
var codecs = func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	if err := coordination.AddToScheme(scheme); err != nil {
		panic(err) // impossible with a new scheme
	}
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}()

// getLease reads the Lease. It returns an empty one if the Lease does not exist.
func (l leaseClient) getLease(ctx context.Context) (*coordination.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, l.requestTimeout)
	defer cancel()
	found := &coordination.Lease{}
	err := l.client.Get().Namespace(l.namespace).Resource("leases").Name(l.name).MaxRetries(0).Do(ctx).Into(found)
	if apierrors.IsNotFound(err) {
		return l.emptyLease(), nil
	}
	return found, err
}

// emptyLease returns the Lease as it is before its creation.
func (l leaseClient) emptyLease() *coordination.Lease {
	return &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name}}
}

// watchLease sends the Lease, and every later state of it, to news until the watch ends or ctx does. Changes between two
// watches are covered by the first Lease of the second one.
func (l leaseClient) watchLease(ctx context.Context, news chan<- *coordination.Lease) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	send := func(lease *coordination.Lease) bool {
		select {
		case news <- lease:
			return true
		case <-ctx.Done():
			return false
		}
	}
	found, err := l.getLease(ctx)
	if err != nil || !send(found) {
		return // renewOrAcquire reads the Lease from time to time anyway
	}
	request := l.client.Get().Namespace(l.namespace).Resource("leases").MaxRetries(0).
		Param("watch", "true").Param("fieldSelector", "metadata.name="+l.name)
	if found.ResourceVersion != "" {
		request = request.Param("resourceVersion", found.ResourceVersion)
	}
	events, err := request.Watch(ctx)
	if err != nil {
		return
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		lease, ok := event.Object.(*coordination.Lease)
		if !ok { // a Status
			return
		}
		if event.Type == watch.Deleted {
			lease = l.emptyLease()
		}
		if !send(lease) {
			return
		}
	}
}

// putLease creates the Lease, or replaces exactly the version in lease, and returns the stored Lease, or nil with an error.
// It is not canceled with ctx: on stop the result decides whether there is a Lease to release.
func (l leaseClient) putLease(ctx context.Context, lease *coordination.Lease) (*coordination.Lease, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.requestTimeout)
	defer cancel()
	request := l.client.Post()
	if lease.ResourceVersion != "" {
		request = l.client.Put().Name(l.name)
	}
	written := &coordination.Lease{}
	if err := request.Namespace(l.namespace).Resource("leases").MaxRetries(0).Body(lease).Do(ctx).Into(written); err != nil {
		return nil, err
	}
	return written, nil
}

const (
	// instanceAnnotation has a random word that the holding process has chosen: two processes may have one identity.
	instanceAnnotation = "kubecdc.io/instance"
	// yieldAnnotation marks a Lease that its holder keeps only until a candidate accepts it, which it does if it surpasses the
	// value.
	yieldAnnotation = "kubecdc.io/yields"
)

// holder is the process that holds a Lease; zero if none does.
type holder struct {
	identity string
	instance string // chosen at random by the process
	yields   string // what a candidate that accepts has to surpass; "" while the Lease is not yielded
}

func withHolder(lease *coordination.Lease, by holder, duration time.Duration, now time.Time) *coordination.Lease {
	lease = lease.DeepCopy()
	before := holderOf(lease)
	for key, value := range map[string]string{instanceAnnotation: by.instance, yieldAnnotation: by.yields} {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, key, value)
		if value == "" {
			delete(lease.Annotations, key)
		}
	}
	spec := &lease.Spec
	if !before.isSameProcess(by) || spec.AcquireTime == nil {
		acquired, transitions := metav1.NewMicroTime(now), int32(0)
		if spec.LeaseTransitions != nil {
			transitions = *spec.LeaseTransitions + 1
		}
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &by.identity, &acquired, &transitions
	}
	seconds, renewed := int32(duration/time.Second), metav1.NewMicroTime(now)
	spec.LeaseDurationSeconds, spec.RenewTime = &seconds, &renewed
	return lease
}

func holderOf(lease *coordination.Lease) holder {
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return holder{}
	}
	return holder{*lease.Spec.HolderIdentity, lease.Annotations[instanceAnnotation], lease.Annotations[yieldAnnotation]}
}

func (h holder) isSameProcess(other holder) bool {
	return h.identity == other.identity && h.instance == other.instance
}
