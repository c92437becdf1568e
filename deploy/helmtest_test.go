package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testPod is the Pod of "helm test".
type testPod struct {
	Meta objectMeta `yaml:"metadata"`
	Spec struct {
		Containers []struct {
			Image   string   `yaml:"image"`
			Command []string `yaml:"command"`
			Args    []string `yaml:"args"`
		} `yaml:"containers"`
	} `yaml:"spec"`
}

// renderedService is a Service, as far as its name in the DNS and its ports are concerned.
type renderedService struct {
	Meta struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Spec struct {
		Ports []struct {
			Name string `yaml:"name"`
			Port string `yaml:"port"`
		} `yaml:"ports"`
	} `yaml:"spec"`
}

// TestHelmTestFailsUnlessTheExporterIsReady installs the chart on a real API server, and runs the command of its test Pod
// against an exporter that is not allowed to read anything, then is, and then is stopped.
func TestHelmTestFailsUnlessTheExporterIsReady(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.applyAll(t, manifests(t, base, "Kustomization")[:1]) // the namespace, which enforces the restricted standard
	all := template(t, "--values", filepath.Join(chart, "ci", "default-values.yaml"),
		"--set", "config.cluster.name=test", "--set-json", `config.sinks=[{"name":"out","stdout":{"path":"/dev/null"}}]`)
	c.applyAll(t, slices.DeleteFunc(slices.Clone(all), func(m manifest) bool { return strings.HasPrefix(m.Kind, "ClusterRole") }))
	args := helmTestArgs(t, all)
	var text configMap
	one(t, slicesOf(all, "kubecdc"), "ConfigMap", &text)
	program := buildExporter(t)
	run := func(address string) (printed string, code int) {
		stdout, stderr, err := execute(t, program, append(slices.Clone(args), "--address", address)...)
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			code = exit.ExitCode()
		case err != nil:
			t.Fatal(err)
		}
		return stdout + stderr, code
	}
	var address string
	t.Run("exporter", func(t *testing.T) {
		address = adminAddress(t, c.runExporter(t, program, text.Data["config.yaml"]))
		var printed string
		if !until(func() bool { printed, _ = run(address); return strings.Contains(printed, "NothingWatched") }) {
			t.Fatalf("an exporter without rights is not shown as such:\n%s", printed)
		}
		if printed, code := run(address); code != 3 || !strings.Contains(printed, "is not ready") {
			t.Errorf("exit code %d without rights:\n%s", code, printed)
		}
		c.applyRights(t, all)
		var code int
		if !until(func() bool { printed, code = run(address); return code == 0 }) {
			t.Errorf("exit code %d with rights:\n%s", code, printed)
		}
	})
	if printed, code := run(address); code != 3 || !strings.Contains(printed, "no exporter") {
		t.Errorf("exit code %d without an exporter:\n%s", code, printed)
	}
}

// helmTestArgs returns the arguments of the test Pod without its address, which has to be that of the chart's Service.
func helmTestArgs(t *testing.T, all []manifest) []string {
	t.Helper()
	var pod testPod
	one(t, all, "Pod", &pod)
	var service renderedService
	one(t, all, "Service", &service)
	if pod.Meta.Annotations["helm.sh/hook"] != "test" || len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Command != nil {
		t.Fatalf("no test of Helm that runs the image as it is: %+v", pod)
	}
	args := pod.Spec.Containers[0].Args
	i := slices.Index(args, "--address")
	if i < 0 || i+1 == len(args) || args[i+1] != service.Meta.Name+":"+service.Spec.Ports[0].Port || service.Spec.Ports[0].Name != "admin" {
		t.Fatalf("arguments %q for the Service %+v", args, service)
	}
	return slices.Delete(slices.Clone(args), i, i+2)
}

// adminAddress waits until the log of an exporter names its admin server.
func adminAddress(t *testing.T, logFile string) (address string) {
	t.Helper()
	named := regexp.MustCompile(`admin"?[=:]"?(127\.0\.0\.1:[0-9]+)`)
	if !until(func() bool {
		text, _ := os.ReadFile(logFile)
		m := named.FindSubmatch(text)
		if m != nil {
			address = string(m[1])
		}
		return m != nil
	}) {
		t.Fatal("no admin server")
	}
	return address
}
