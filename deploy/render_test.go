package deploy_test

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// chart is the directory of the Helm chart.
const chart = "helm/kubecdc"

// helm runs Helm and returns what it prints, and what it complains of.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	require.Integration(t)
	program, err := build.Helm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return execute(t, program, args...)
}

// kustomize runs kustomize, which has to succeed, and returns what it prints.
func kustomize(t *testing.T, args ...string) string {
	t.Helper()
	require.Integration(t)
	program, err := build.Kustomize(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := execute(t, program, args...)
	if err != nil {
		t.Fatalf("kustomize %s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return stdout
}

func execute(t *testing.T, program string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, complaints bytes.Buffer
	c := exec.CommandContext(t.Context(), program, args...)
	c.Stdout, c.Stderr = &out, &complaints
	err = c.Run()
	return out.String(), complaints.String(), err
}

// template renders the chart as an installation into the namespace kubecdc would.
func template(t *testing.T, args ...string) []manifest {
	t.Helper()
	out, complaints, err := helm(t, append([]string{"template", "kubecdc", chart, "--namespace", "kubecdc"}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, complaints)
	}
	return split(t, out)
}

// split takes the documents of a rendering apart, definitions of types first, as Helm and kubectl apply them.
func split(t *testing.T, text string) []manifest {
	t.Helper()
	var all []manifest
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var node yaml.Node
		if err := d.Decode(&node); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if node.Content[0].Tag == "!!null" {
			continue
		}
		var m manifest
		if err := node.Decode(&m); err != nil {
			t.Fatal(err)
		}
		var err error
		if m.text, err = yaml.Marshal(&node); err != nil {
			t.Fatal(err)
		}
		m.file = m.Kind + " " + m.Meta.Name
		all = append(all, m)
	}
}

// one returns the manifest of a kind, which has to be there once, decoded.
func one(t *testing.T, all []manifest, kind string, into any) {
	t.Helper()
	found := slices.DeleteFunc(slices.Clone(all), func(m manifest) bool { return m.Kind != kind })
	if len(found) != 1 {
		t.Fatalf("%d of kind %s", len(found), kind)
	}
	if err := yaml.Unmarshal(found[0].text, into); err != nil {
		t.Fatal(err)
	}
}
