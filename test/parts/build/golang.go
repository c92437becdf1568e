package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// program is a command of one of the nested modules.
type program struct {
	module string // directory of the module, from the root
	name   string // directory of the command below cmd/, unless pkg is set
	pkg    string // import path of a command that the module needs as a tool
	takes  string
	link   func(gomod string) ([]string, error) // variables to set when linking, from the module's go.mod; may be nil
}

// Etcd returns the path of the etcd server.
func Etcd(ctx context.Context) (string, error) {
	return program{module: "test/controlplane", name: "etcd", takes: "about 40 seconds"}.provide(ctx)
}

// APIServer returns the path of the Kubernetes API server.
func APIServer(ctx context.Context) (string, error) {
	return program{module: "test/controlplane", name: "kube-apiserver", takes: "about 5 minutes", link: kubernetesVersion}.provide(ctx)
}

// ControllerManager returns the path of the Kubernetes controller manager.
func ControllerManager(ctx context.Context) (string, error) {
	return program{
		module: "test/controllermanager", name: "kube-controller-manager", takes: "about 3 minutes", link: kubernetesVersion,
	}.provide(ctx)
}

// NATSServer returns the path of the NATS server.
func NATSServer(ctx context.Context) (string, error) {
	return program{module: "test/natsserver", name: "nats-server", takes: "about 30 seconds"}.provide(ctx)
}

// Loki returns the path of Grafana Loki.
func Loki(ctx context.Context) (string, error) {
	return program{
		module: "test/loki", name: "loki", pkg: "github.com/grafana/loki/v3/cmd/loki", takes: "about 5 minutes",
	}.provide(ctx)
}

// OTelCollector returns the path of an OpenTelemetry collector with what recipes name.
func OTelCollector(ctx context.Context) (string, error) {
	return program{module: "test/otelcol", name: "otelcol", takes: "about 2 minutes"}.provide(ctx)
}

// Helm returns the path of Helm.
func Helm(ctx context.Context) (string, error) {
	return program{module: "tools/deploy", name: "helm", pkg: "helm.sh/helm/v4/cmd/helm", takes: "about 2 minutes"}.provide(ctx)
}

// Kustomize returns the path of kustomize.
func Kustomize(ctx context.Context) (string, error) {
	return program{module: "tools/deploy", name: "kustomize", pkg: "sigs.k8s.io/kustomize/kustomize/v5", takes: "about 20 seconds"}.provide(ctx)
}

// provide returns the path of the built program and builds it first if the cache does not have it.
func (p program) provide(ctx context.Context) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, filepath.FromSlash(p.module))
	flags, err := p.linkFlags(module)
	if err != nil {
		return "", err
	}
	key, err := p.key(module, flags)
	if err != nil {
		return "", fmt.Errorf("sources of %s: %w", p.name, err)
	}
	return artifact{
		title: p.name,
		takes: p.takes,
		path:  filepath.Join(cache, "bin", p.name+"-"+key),
		make: func(ctx context.Context, temporary, log string) error {
			return p.compile(ctx, module, flags, temporary, log)
		},
	}.provide(ctx)
}

// key hashes what the program is made from.
func (p program) key(module, flags string) (string, error) {
	files, err := filepath.Glob(filepath.Join(module, "cmd", p.name, "*.go"))
	if err != nil {
		return "", err
	}
	files = append(files, filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum"))
	return digest(files, runtime.Version(), runtime.GOOS, runtime.GOARCH, flags)
}

// digest hashes words and the contents of files, each with its length so that their borders count.
func digest(files []string, words ...string) (string, error) {
	hash := sha256.New()
	for _, word := range words {
		fmt.Fprintf(hash, "%d %s\n", len(word), word)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%d %s %d %s\n", len(filepath.Base(file)), filepath.Base(file), len(text), text)
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8]), nil
}

// compile runs the go command. Flags stand on the command line, where they win over a GOFLAGS that "go env -w" has
// written; the variables that would change the result are taken out of the environment.
func (p program) compile(ctx context.Context, module, flags, out, log string) error {
	tool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("%w; install Go and put it on PATH", err)
	}
	args := []string{"build", "-mod=readonly", "-race=false", "-buildvcs=false", "-ldflags", flags, "-o", out, cmp.Or(p.pkg, "./cmd/"+p.name)}
	return run(ctx, p.name, tool, args, module, buildEnvironment(os.Environ()), log)
}

// buildEnvironment returns the environment for the go command: that of the caller, without what is meant for the
// caller's own build.
func buildEnvironment(from []string) []string {
	var env []string
	for _, entry := range from {
		name, _, _ := strings.Cut(entry, "=")
		switch name {
		case "GOFLAGS", "GOOS", "GOARCH", "GOWORK", "CGO_ENABLED", "GOEXPERIMENT":
			continue
		}
		env = append(env, entry)
	}
	// The programs need no C code, and so no compiler for it.
	return append(env, "GOWORK=off", "CGO_ENABLED=0")
}

func (p program) linkFlags(module string) (string, error) {
	flags := []string{"-s", "-w"} // no debugger comes near them, and the files are large
	if p.link == nil {
		return strings.Join(flags, " "), nil
	}
	gomod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	variables, err := p.link(string(gomod))
	if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Join(module, "go.mod"), err)
	}
	for _, variable := range variables {
		flags = append(flags, "-X "+variable)
	}
	return strings.Join(flags, " "), nil
}

var kubernetesRequirement = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// kubernetesVersion gives a Kubernetes program the version that its module has. A plain build would call itself v0.0.0,
// and clients decide by this number.
func kubernetesVersion(gomod string) ([]string, error) {
	match := kubernetesRequirement.FindStringSubmatch(gomod)
	if match == nil {
		return nil, fmt.Errorf("no requirement of k8s.io/kubernetes")
	}
	var variables []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		variables = append(variables,
			pkg+".gitVersion="+match[1], pkg+".gitMajor="+match[2], pkg+".gitMinor="+match[3], pkg+".gitTreeState=clean")
	}
	return variables, nil
}
