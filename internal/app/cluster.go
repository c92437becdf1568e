package app

import (
	"fmt"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// restConfig finds the API server like kubectl: the configured kubeconfig, else $KUBECONFIG, else ~/.kube/config, else the
// service account of the Pod.
func restConfig(c config.Cluster) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.Context}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("no cluster to watch: set cluster.kubeconfig or $KUBECONFIG, or run inside a Pod with a service account")
	}
	if err != nil && strings.HasPrefix(err.Error(), "error loading config file") { // it may quote the file
		return nil, fmt.Errorf("the kubeconfig (%s) cannot be read as one", strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return cfg, nil
}

// NewClient returns a client for the configured cluster; version is that of the program. It opens no connection. The caller
// closes it.
func NewClient(cfg *config.Config, version string) (*apiserver.Client, error) {
	return apiserver.NewReloadingClient(func() (*rest.Config, error) { return restConfig(cfg.Cluster) }, version)
}
