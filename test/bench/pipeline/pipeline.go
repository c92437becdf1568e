package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// startControlPlane starts a control plane below dir that writes no audit log, which would be measured too.
func startControlPlane(ctx context.Context, dir string) (*controlplane.ControlPlane, error) {
	return controlplane.Start(ctx, controlplane.Options{
		Dir: filepath.Join(dir, "controlplane"), NoAudit: true, SmallHeap: true,
		APIServerArgs: []string{"--request-timeout=5s"}, // a stop waits that long for watches
	})
}

// WithControlPlane calls run with an empty directory, which is named after the program, and a control plane in it, and
// removes both afterwards.
func WithControlPlane(ctx context.Context, name string, run func(dir string, plane *controlplane.ControlPlane) error) (err error) {
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	plane, err := startControlPlane(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	return run(dir, plane)
}

// Client returns a client without a limit on its side.
func Client(kubeconfig string) (dynamic.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return dynamic.NewForConfig(config)
}

// Definitions is the resource of custom resource definitions.
var Definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Definition is the definition of a type without a namespace, whose objects may have any content.
func Definition(group, plural, kind string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + group},
		"spec": map[string]any{
			"group": group, "scope": "Cluster", "names": map[string]any{"plural": plural, "kind": kind},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
}

// serveLook is how often Serve looks whether a type is served.
const serveLook = 20 * time.Millisecond

// Serve defines a type without a namespace, and returns its objects once it is served.
func Serve(ctx context.Context, client dynamic.Interface, group, plural, kind string) (dynamic.ResourceInterface, error) {
	if _, err := client.Resource(Definitions).Create(ctx, Definition(group, plural, kind), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	objects := client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural})
	return objects, Until(ctx, serveLook, func() (bool, error) {
		_, err := objects.List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// Until asks again and again, with a pause in between, until the answer is yes. It ends with ctx.
func Until(ctx context.Context, pause time.Duration, ask func() (bool, error)) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		yes, err := ask()
		if yes || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(errors.New("it did not come"), context.Cause(ctx))
		}
	}
}

// Exporter is a running exporter.
type Exporter struct {
	*process.Process
	Config  string // its configuration file
	Address string // of its admin server
}

// StartExporter starts an exporter with files below dir and returns when it is ready. routing is the part of the
// configuration under resources and sinks.
func StartExporter(ctx context.Context, program, dir, kubeconfig, routing string) (*Exporter, error) {
	free, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	address, config := ports.Address(free[0]), filepath.Join(dir, "exporter.yaml")
	text := fmt.Sprintf("cluster: {kubeconfig: %q}\n%sjournal: {dir: %q}\nadmin: {listen: %q}\n",
		kubeconfig, routing, filepath.Join(dir, "journal"), address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	started, err := process.Start(ctx, process.Options{
		Name: "exporter", Path: program, Args: []string{"run", "--config", config}, Log: filepath.Join(dir, "exporter.log"),
		Ready: func(ctx context.Context) error { return process.GetOK(ctx, "http://"+address+"/readyz") },
	})
	if err != nil {
		return nil, err
	}
	return &Exporter{Process: started, Config: config, Address: address}, nil
}
