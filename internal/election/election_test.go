package election

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	api "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

// shared is the control plane of the tests that leave it running. Each has a Lease of its own.
var shared controlplane.Shared

func TestMain(m *testing.M) { leaks.MainWithServers(m, shared.Stop) }

// testTimeout bounds each wait, with a wide margin.
const testTimeout = 3 * time.Minute

type plane struct {
	*controlplane.ControlPlane
	config *rest.Config
	leases coordination.LeaseInterface
	name   string // of the test's Lease
}

func sharedPlane(t *testing.T) *plane { return connectTo(t, shared.ForTest(t)) }

func connectTo(t *testing.T, c *controlplane.ControlPlane) *plane {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := coordination.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{ControlPlane: c, config: config, leases: client.Leases("default"), name: strings.ToLower(t.Name())}
	t.Cleanup(func() {
		if err := p.leases.Delete(context.Background(), p.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return p
}

// candidate is a running election.
type candidate struct {
	*Election
	cancel, stop func()
}

func (p *plane) startCandidate(t *testing.T, identity string, changes ...func(*Options)) *candidate {
	t.Helper()
	o := Options{
		Client: p.config, Namespace: "default", Name: p.name, Identity: identity, Duration: 2 * time.Second, Log: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&o)
	}
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	c := &candidate{e, cancel, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
	}}
	t.Cleanup(c.stop)
	return c
}

// awaitWithin calls wait with a deadline of testTimeout and fails the test on an error.
func awaitWithin(t *testing.T, what string, wait func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := wait(ctx); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// holdsLease reports whether the candidate holds the Lease now.
func (c *candidate) holdsLease() bool {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	return c.AwaitLease(ended) == nil
}

// readRarely makes candidates read the Lease less often than testTimeout, so that only the watch is fast enough.
func readRarely(o *Options) { o.Duration = 10 * testTimeout }

// startStandby starts two candidates that rarely read the Lease. The first one holds it.
func (p *plane) startStandby(t *testing.T) (first, second *candidate) {
	t.Helper()
	first = p.startCandidate(t, "exporter-0", readRarely)
	awaitWithin(t, "the first", first.AwaitLease)
	second = p.startCandidate(t, "exporter-1", readRarely)
	awaitWithin(t, "the second sees the first", second.AwaitOtherHolder)
	return first, second
}

func TestStandbyWatchesLeaseRelease(t *testing.T) {
	first, second := sharedPlane(t).startStandby(t)
	if second.holdsLease() || second.Holder() != "exporter-0" {
		t.Errorf("the second holds the Lease: %v; it sees %q", second.holdsLease(), second.Holder())
	}
	first.stop()
	awaitWithin(t, "the second", second.AwaitLease)
}

func TestStandbyWatchesLeaseDeletion(t *testing.T) {
	p := sharedPlane(t)
	_, second := p.startStandby(t)
	if err := p.leases.Delete(t.Context(), p.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitWithin(t, "the second", second.AwaitLease)
}

// longDuration gives each request a long timeout, so that one attempt is enough to release the Lease.
const longDuration = 30 * time.Second

// holdingTransport delays the answer to one PUT.
type holdingTransport struct {
	http.RoundTripper
	held, goOn chan struct{}
}

func (h *holdingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := h.RoundTripper.RoundTrip(r)
	if r.Method != http.MethodPut {
		return answer, err
	}
	select {
	case h.held <- struct{}{}:
		<-h.goOn
	default:
	}
	if r.Context().Err() != nil && err == nil {
		return nil, errors.Join(r.Context().Err(), answer.Body.Close())
	}
	return answer, err
}

func TestLeaseRenewedDuringStopIsReleased(t *testing.T) {
	p := sharedPlane(t)
	h := &holdingTransport{held: make(chan struct{}), goOn: make(chan struct{})}
	first := p.startCandidate(t, "exporter-0", func(o *Options) {
		o.Duration = longDuration
		o.Client = rest.CopyConfig(p.config)
		o.Client.Wrap(func(next http.RoundTripper) http.RoundTripper {
			h.RoundTripper = next
			return h
		})
	})
	awaitWithin(t, "the first", first.AwaitLease)
	<-h.held // the answer to a renewal
	first.cancel()
	close(h.goOn)
	first.stop()
	if holder := holderOf(p.getLease(t)).identity; holder != "" {
		t.Errorf("the Lease is held by %q", holder)
	}
}

// lossyTransport drops the answer to one PUT, after it has called lose.
type lossyTransport struct {
	http.RoundTripper
	lose func()
}

func (l *lossyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.RoundTripper.RoundTrip(r)
	if r.Method != http.MethodPut || err != nil || l.lose == nil {
		return answer, err
	}
	l.lose()
	l.lose = nil
	return nil, errors.Join(errors.New("the answer is lost"), answer.Body.Close())
}

func TestLeaseWithUncertainRenewalIsReleased(t *testing.T) {
	p := sharedPlane(t)
	var cancel func()
	ready := make(chan struct{})
	first := p.startCandidate(t, "exporter-0", func(o *Options) {
		o.Duration = longDuration
		o.Client = rest.CopyConfig(p.config)
		o.Client.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &lossyTransport{next, func() { <-ready; cancel() }}
		})
	})
	cancel = first.cancel
	close(ready)
	awaitWithin(t, "the first", first.AwaitLease)
	first.stop()
	if holder := holderOf(p.getLease(t)).identity; holder != "" {
		t.Errorf("the Lease is held by %q", holder)
	}
}

func TestHolderObservesLostLease(t *testing.T) {
	p := sharedPlane(t)
	first := p.startCandidate(t, "exporter-0")
	awaitWithin(t, "the first", first.AwaitLease)
	lease, err := p.leases.Get(t.Context(), p.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for other := "another"; ; {
		lease.Spec.HolderIdentity = &other
		if _, err = p.leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err == nil {
			break
		}
		if lease, err = p.leases.Get(t.Context(), p.name, metav1.GetOptions{}); err != nil { // it was renewed in between
			t.Fatal(err)
		}
	}
	awaitWithin(t, "another holder", first.AwaitOtherHolder)
	awaitWithin(t, "the Lease again, after the other holder is silent", first.AwaitLease)
}

func TestDeletedLeaseIsRecreated(t *testing.T) {
	p := sharedPlane(t)
	first := p.startCandidate(t, "exporter-0")
	awaitWithin(t, "the first", first.AwaitLease)
	if err := p.leases.Delete(t.Context(), p.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitMet(t, "the Lease", func() bool {
		_, err := p.leases.Get(t.Context(), p.name, metav1.GetOptions{})
		return err == nil
	})
	awaitWithin(t, "the Lease again", first.AwaitLease)
}

func TestHolderContinuesWithoutAPIServer(t *testing.T) {
	p := connectTo(t, controlplane.ForTest(t))
	first := p.startCandidate(t, "exporter-0")
	awaitWithin(t, "the first", first.AwaitLease)
	awaitMet(t, "that the holder proves the Lease", first.ProvesHolder)
	if err := p.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	awaitMet(t, "that the API server is away", func() bool { return !first.Status().OK() })
	if !first.holdsLease() || !strings.Contains(first.Status().Remedy, "check that the API server can be reached") {
		t.Errorf("holds the Lease %v, %+v", first.holdsLease(), first.Status())
	}
	awaitMet(t, "that nothing proves the Lease any more", func() bool { return !first.ProvesHolder() })
	if err := p.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitMet(t, "that the holder proves the Lease again", first.ProvesHolder)
	awaitMet(t, "that it is back", func() bool { return first.Status().OK() })
	if !first.holdsLease() {
		t.Error("the holder lost the Lease without a competitor")
	}
}

// TestWhoMayNotReadTheLeaseIsReadyOnlyWhileItKnowsAHolder has an API server that refuses everything, and one that begins to.
func TestWhoMayNotReadTheLeaseIsReadyOnlyWhileItKnowsAHolder(t *testing.T) {
	for name, want := range map[string]condition.Severity{"": condition.NotReady, "exporter-1": condition.Degraded} {
		t.Run("holder "+name, func(t *testing.T) {
			e, err := New(Options{Client: &rest.Config{}, Namespace: "default", Name: "exporter", Identity: "exporter-0", Duration: time.Second, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			e.setHolder(holder{identity: name})
			e.reportFailure(t.Context(), "read", apierrors.NewForbidden(api.Resource("leases"), "exporter", errors.New("no right")))
			if s := e.Status(); s.Severity != want || s.Code != condition.LeaseUnknown || !strings.Contains(s.Remedy, "exporter rbac") {
				t.Errorf("%+v", s)
			}
		})
	}
}

// awaitMet waits until met returns true.
func awaitMet(t *testing.T, what string, met func() bool) {
	t.Helper()
	awaitWithin(t, what, func(ctx context.Context) error {
		for !met() {
			if err := ratelimit.Sleep(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *plane) getLease(t *testing.T) *api.Lease {
	t.Helper()
	lease, err := p.leases.Get(t.Context(), p.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestYieldedLeaseIsAcquiredByCandidateThatAccepts(t *testing.T) {
	p := sharedPlane(t)
	first, second := p.startStandby(t)
	first.SetYielding("more")
	awaitMet(t, "the yielded Lease", func() bool { return second.Yielded() == "more" })
	if !first.holdsLease() {
		t.Error("the holder lost the Lease before another one accepted it")
	}
	second.AcceptYielded()
	awaitWithin(t, "the second", second.AwaitLease)
	if by := holderOf(p.getLease(t)); by.yields != "" {
		t.Error("the second yields the Lease that it has just acquired")
	}
}

func TestLeaseIsNotAcquiredOnceItIsNoLongerYielded(t *testing.T) {
	p := sharedPlane(t)
	first, second := p.startStandby(t)
	first.SetYielding("more")
	awaitMet(t, "the yielded Lease", func() bool { return second.Yielded() == "more" })
	first.SetYielding("")
	awaitMet(t, "the Lease that is not yielded", func() bool { return second.Yielded() == "" })
	second.AcceptYielded()
	awaitMet(t, "the end of the attempt", func() bool {
		second.mu.Lock()
		defer second.mu.Unlock()
		return !second.accepts
	})
	first.SetYielding("more")
	awaitMet(t, "the Lease that is yielded again", func() bool { return second.Yielded() == "more" })
	if second.holdsLease() {
		t.Error("an earlier acceptance counts")
	}
}

func TestSecondProcessOfOneIdentityIsRefused(t *testing.T) {
	p := sharedPlane(t)
	first := p.startCandidate(t, "exporter-0")
	awaitWithin(t, "the first", first.AwaitLease)
	second := p.startCandidate(t, "exporter-0")
	awaitMet(t, "the refusal", func() bool { return strings.Contains(second.Status().Remedy, "its own election.identity") })
	if second.holdsLease() || !first.holdsLease() || *p.getLease(t).Spec.LeaseTransitions != 0 {
		t.Errorf("the first holds the Lease: %v, the second: %v", first.holdsLease(), second.holdsLease())
	}
	first.stop()
	awaitWithin(t, "the second, once it is alone", second.AwaitLease)
	if !second.Status().OK() {
		t.Error(second.Status().Text(time.Now()))
	}
}

func TestDeposedHolderForgetsLeaseThatAnotherHasAcquired(t *testing.T) {
	p := sharedPlane(t)
	first := p.startCandidate(t, "exporter-0", readRarely)
	awaitWithin(t, "the first", first.AwaitLease)
	lease, other := p.getLease(t), "another"
	lease.Spec.HolderIdentity = &other
	if _, err := p.leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	first.ForgetHolder()
	awaitWithin(t, "the other holder", first.AwaitOtherHolder)
}
