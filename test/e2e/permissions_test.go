package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// newRestrictedFixture makes a fixture; its exporter has the rights that rbac prints for its configuration, and no more.
func newRestrictedFixture(t *testing.T, kinds []workload.Kind, changes ...func(*exporter.Settings)) *fixture {
	t.Helper()
	return newRestrictedFixtureIn(t, servers(t), kinds, changes...)
}

// newRestrictedFixtureIn is newRestrictedFixture in an environment that may have a control plane of its own.
func newRestrictedFixtureIn(t *testing.T, env *environment, kinds []workload.Kind, changes ...func(*exporter.Settings)) *fixture {
	t.Helper()
	kubeconfig, err := env.controlPlane.KubeconfigFor(account)
	if err != nil {
		t.Fatal(err)
	}
	as := func(settings *exporter.Settings) { settings.Kubeconfig = kubeconfig }
	s := newFixtureIn(t, env, kinds, append([]func(*exporter.Settings){as}, changes...)...)
	s.grant()
	return s
}

// grant applies what rbac prints for the fixture's configuration until the end of the test, and waits until every API server
// goes by it. As with kubectl apply, what is there stays, and what is printed for a namespace that does not exist is left
// out until grant is called again.
func (s *fixture) grant() {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.program, "rbac", "--offline", "--name", s.name, "--config", s.exporter.Config())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	printed, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("rbac: %v\n%s", err, stderr.String())
	}
	admin := s.dynamic(s.controlPlane.Kubeconfig())
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(printed), 4096)
	var roles []role
	for {
		o := &unstructured.Unstructured{}
		err := documents.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			break
		}
		s.must(err)
		r := role{admin.Resource(rbacKind(o)).Namespace(o.GetNamespace()), o.GetName(), o}
		if s.create(r) && strings.HasSuffix(o.GetKind(), "Role") {
			roles = append(roles, r)
		}
	}
	for _, server := range s.controlPlane.APIServers() {
		direct := filepath.Join(s.t.TempDir(), "kubeconfig")
		config, err := clientcmd.LoadFromFile(s.controlPlane.Kubeconfig())
		s.must(err)
		for _, cluster := range config.Clusters {
			cluster.Server = "https://" + server.Address()
		}
		s.must(clientcmd.WriteToFile(*config, direct))
		s.awaitGranted(s.dynamic(direct), roles)
	}
}

// rbacKind is the resource of a role or binding.
func rbacKind(o *unstructured.Unstructured) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: strings.ToLower(o.GetKind()) + "s"}
}

// create creates a role or binding until the end of the test, and reports whether it exists.
func (s *fixture) create(r role) bool {
	s.t.Helper()
	exists := false
	err := workload.Persist(s.t.Context(), func() error {
		_, err := r.client.Create(s.t.Context(), r.object, metav1.CreateOptions{})
		if exists = apierrors.IsAlreadyExists(err); exists {
			return nil
		}
		return err
	})
	switch {
	case exists:
		return true
	case apierrors.IsNotFound(err): // its namespace
		return false
	}
	s.must(err)
	return true
}

func (s *fixture) dynamic(kubeconfig string) dynamic.Interface {
	s.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	s.must(err)
	client, err := dynamic.NewForConfig(config)
	s.must(err)
	return client
}

// awaitGranted asks an API server until the exporter has the rights of the roles.
func (s *fixture) awaitGranted(admin dynamic.Interface, roles []role) {
	s.t.Helper()
	for _, r := range roles {
		for i := range r.rules() {
			awaitRight(s.t, admin, r.attributes(i), true)
		}
	}
}

// awaitRight waits until an API server says that the exporter may do something, or that it may not.
func awaitRight(t *testing.T, admin dynamic.Interface, attributes map[string]any, want bool) {
	t.Helper()
	for deadline := time.Now().Add(arriveWithin); allowed(t, admin, attributes) != want; await.Pause(t, lookEvery) {
		if time.Now().After(deadline) {
			t.Fatalf("%s may do %v: %v after %v", account, attributes, !want, arriveWithin)
		}
	}
}

// allow lets the exporter read one more kind until the end of the test, or until the returned function takes the right back.
func (s *fixture) allow(kind workload.Kind) (forbid func()) {
	s.t.Helper()
	role := s.name + "-" + kind.Resource.Resource
	s.must(s.cluster.Allow(s.t.Context(), role, account, kind))
	revoke := func(ctx context.Context) error { return s.cluster.Revoke(ctx, role, account, kind) }
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), undoWithin)
		defer cancel()
		if err := revoke(ctx); err != nil {
			s.t.Error(err)
		}
	})
	return func() { s.must(revoke(s.t.Context())) }
}

// allowed asks an API server whether the exporter may do something, until it may.
func allowed(t *testing.T, admin dynamic.Interface, attributes map[string]any) bool {
	t.Helper()
	reviews := admin.Resource(schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"})
	var answer *unstructured.Unstructured
	err := workload.Persist(t.Context(), func() (err error) {
		answer, err = reviews.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
			"spec": map[string]any{"user": account, "resourceAttributes": attributes},
		}}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	yes, _, err := unstructured.NestedBool(answer.Object, "status", "allowed")
	if err != nil {
		t.Fatal(err)
	}
	return yes
}
