package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestTheRootIsFoundFromAnyPackage(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "test", "parts", "build", "root.go")); err != nil {
		t.Fatalf("Root() = %s, which does not hold this package: %v", root, err)
	}
}

func TestOutsideACheckoutTheErrorSaysSo(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := Root(); err == nil || !strings.Contains(err.Error(), "run from within a checkout") {
		t.Fatalf("Root() outside a checkout: %v", err)
	}
}

func TestManyAtOnceBuildOnce(t *testing.T) {
	var builds atomic.Int32
	path := filepath.Join(t.TempDir(), "bin", "thing")
	thing := artifact{title: "thing", takes: "no time", path: path, make: func(_ context.Context, temporary, _ string) error {
		builds.Add(1)
		return os.WriteFile(temporary, []byte("whole"), 0o755)
	}}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := thing.provide(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := builds.Load(); n != 1 {
		t.Fatalf("built %d times", n)
	}
}

func TestAFailedBuildLeavesNothingThatLooksBuilt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	broken := errors.New("broken")
	thing := artifact{title: "thing", takes: "no time", path: path, make: func(_ context.Context, temporary, _ string) error {
		return errors.Join(os.WriteFile(temporary, []byte("half"), 0o755), broken)
	}}
	if _, err := thing.provide(t.Context()); !errors.Is(err, broken) {
		t.Fatalf("provide: %v", err)
	}
	for _, name := range []string{path, path + ".tmp"} {
		if exists(name) {
			t.Fatalf("%s exists after a failed build", name)
		}
	}
}

func TestTheCallersBuildFlagsDoNotLeakIn(t *testing.T) {
	env := buildEnvironment([]string{"GOFLAGS=-race", "GOOS=plan9", "GOWORK=/w", "PATH=/bin"})
	want := []string{"PATH=/bin", "GOWORK=off", "CGO_ENABLED=0"}
	if !slices.Equal(env, want) {
		t.Fatalf("environment = %q, want %q", env, want)
	}
}

func TestTheAPIServerKnowsItsVersion(t *testing.T) {
	variables, err := kubernetesVersion("require (\n\tk8s.io/kubernetes v1.37.1\n)\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"k8s.io/component-base/version.gitVersion=v1.37.1", "k8s.io/client-go/pkg/version.gitMinor=37"} {
		if !slices.Contains(variables, want) {
			t.Errorf("no %s in %q", want, variables)
		}
	}
	if _, err := kubernetesVersion("module x\n"); err == nil {
		t.Error("a go.mod without Kubernetes is taken")
	}
}

func TestAChangedSourceIsAnotherProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "go.mod")
	var keys []string
	for _, text := range []string{"module a\n", "module b\n"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		key, err := digest([]string{file}, "go1.26")
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	if keys[0] == keys[1] {
		t.Fatal("two go.mod files have one key")
	}
}
