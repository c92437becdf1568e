package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/test/parts/build"
)

// programs are the paths of the two servers.
type programs struct {
	etcd, apiServer string
}

// findPrograms takes the programs that other Kubernetes tests on this machine use, or provides our own.
func findPrograms(ctx context.Context) (programs, error) {
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		return installedPrograms(assets)
	}
	etcd, err := build.Etcd(ctx)
	if err != nil {
		return programs{}, err
	}
	apiServer, err := build.APIServer(ctx)
	if err != nil {
		return programs{}, err
	}
	return programs{etcd: etcd, apiServer: apiServer}, nil
}

func installedPrograms(assets string) (programs, error) {
	found := programs{etcd: filepath.Join(assets, "etcd"), apiServer: filepath.Join(assets, "kube-apiserver")}
	for _, path := range []string{found.etcd, found.apiServer} {
		if _, err := os.Stat(path); err != nil {
			return programs{}, fmt.Errorf("KUBEBUILDER_ASSETS is set: %w; unset it to build the program instead", err)
		}
	}
	return found, nil
}
