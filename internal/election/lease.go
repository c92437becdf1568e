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
	requestTimeout  time.Duration // with an API server that accepts and never answers
}

// codecs know Leases and the errors of the API server, and nothing else. client-go's leader election knows all types of
// Kubernetes, which would be a third of the binary.
var codecs = func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	if err := coordination.AddToScheme(scheme); err != nil {
		panic(err) // a scheme that takes nothing
	}
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}()

func newLeaseClient(config *rest.Config, namespace, name string) (leaseClient, error) {
	config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/apis", &coordination.SchemeGroupVersion, codecs
	client, err := rest.RESTClientFor(config)
	return leaseClient{client: client, namespace: namespace, name: name}, err
}

// getLease reads the Lease; none where it does not exist.
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

// emptyLease is a Lease that does not exist yet.
func (l leaseClient) emptyLease() *coordination.Lease {
	return &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name}}
}

// watchLease tells how the Lease is and what becomes of it, as long as that can be learnt, or until ctx ends. What happens to it
// between two watches is told at the beginning of the second.
func (l leaseClient) watchLease(ctx context.Context, told chan<- *coordination.Lease) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tell := func(lease *coordination.Lease) bool {
		select {
		case told <- lease:
			return true
		case <-ctx.Done():
			return false
		}
	}
	found, err := l.getLease(ctx)
	if err != nil || !tell(found) {
		return // the Lease is read now and then
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
		if !ok { // an error
			return
		}
		if event.Type == watch.Deleted {
			lease = l.emptyLease()
		}
		if !tell(lease) {
			return
		}
	}
}

// putLease creates the Lease, or replaces it in exactly the version that it names, and returns it as it is then; nil with an
// error. It is not given up in between when ctx ends: who stops has to know whether the Lease is there to be released.
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

// withHolder is the Lease with another holder, or with a new sign of the one it has.
func withHolder(lease *coordination.Lease, by string, duration time.Duration, now time.Time) *coordination.Lease {
	lease = lease.DeepCopy()
	spec := &lease.Spec
	if holderOf(lease) != by || spec.AcquireTime == nil {
		acquired, transitions := metav1.NewMicroTime(now), int32(0)
		if spec.LeaseTransitions != nil {
			transitions = *spec.LeaseTransitions + 1
		}
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &by, &acquired, &transitions
	}
	seconds, renewed := int32(duration/time.Second), metav1.NewMicroTime(now)
	spec.LeaseDurationSeconds, spec.RenewTime = &seconds, &renewed
	return lease
}

// holderOf is who holds the Lease; "" for nobody.
func holderOf(lease *coordination.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// durationOf is for how long its holder has it without a new sign.
func durationOf(lease *coordination.Lease) time.Duration {
	if lease.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
}
