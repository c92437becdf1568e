package source

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// runUntilEnd starts a Source that is expected to end with an error, which ended receives.
func runUntilEnd(t *testing.T, f *fakeAPI, st *store, adjust ...func(*Config)) (s *Source, ended <-chan error) {
	t.Helper()
	cfg := Config{
		Cluster: "c", Rules: []selection.Rule{{Select: []string{"pods"}}}, Interval: 20 * time.Millisecond,
		Load: st.loadResource, SetScopes: st.setScopes, StoredResources: st.storedResources, Append: st.appendObservation, DropResource: st.dropResource, Log: slog.New(slog.DiscardHandler),
	}
	client, err := apiserver.NewClient(f.config(), "test")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Client = client
	for _, a := range adjust {
		a(&cfg)
	}
	if s, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		done <- s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-finished
		cfg.Client.Close()
	})
	return s, done
}

func mandatoryPods(c *Config) {
	c.Rules = []selection.Rule{{Select: []string{"pods"}, OnForbidden: selection.Fail}}
}

func TestForbiddenMandatoryTypeEndsTheSource(t *testing.T) {
	check := func(t *testing.T, err error, verb string, atStart bool) {
		t.Helper()
		var refused *ForbiddenError
		if !errors.As(err, &refused) || refused.AtStart != atStart || refused.Verb != verb || refused.Scope.ID != "pods" {
			t.Fatalf("ended with %#v", err)
		}
		for _, part := range []string{verb + " pods at cluster scope", "exporter rbac", "onForbidden: degrade"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
	}
	t.Run("from the start", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
			f.deny = true
			began := time.Now()
			_, ended := runUntilEnd(t, f, st, on, mandatoryPods)
			check(t, <-ended, "list", true)
			if took := time.Since(began); took < 7*time.Second || took > 14*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	})
	t.Run("taken away later", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
			s, ended := runUntilEnd(t, f, st, on, mandatoryPods)
			awaitState(t, st, s, Live)
			f.update(func() { f.deny = true })
			f.breakStreams()
			check(t, <-ended, "watch", false)
		})
	})
}

// An authorizer that starts, or a role that is being replaced, refuses for a moment.
func TestBriefRefusalOfMandatoryTypeIsTolerated(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.deny = true
		s, _, stop := startSource(t, f, st, on, mandatoryPods)
		defer stop()
		for range 3 {
			awaitState(t, st, s, Forbidden)
			f.update(func() { f.deny = false })
			awaitState(t, st, s, Live)
			f.update(func() { f.deny = true })
			f.breakStreams()
		}
		awaitState(t, st, s, Forbidden)
		f.update(func() { f.deny = false })
		awaitState(t, st, s, Live)
	})
}
