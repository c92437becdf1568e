package app

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// restConfig finds the API server as kubectl does: the configured kubeconfig, else $KUBECONFIG, else ~/.kube/config,
// else the service account of the Pod this runs in.
func restConfig(c config.Cluster) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.Context}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("no cluster to watch: set cluster.kubeconfig or $KUBECONFIG, or run inside a Pod with a service account")
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return cfg, nil
}

// NewClient makes the client for the configured cluster, for a program of this version. It connects to nothing.
func NewClient(cfg *config.Config, version string) (*apiserver.Client, error) {
	rest, err := restConfig(cfg.Cluster)
	if err != nil {
		return nil, err
	}
	return apiserver.NewClient(rest, version)
}

// Rules are the rules of a configuration, in its order.
func Rules(cfg *config.Config) []selection.Rule {
	rules := make([]selection.Rule, len(cfg.Resources))
	for i, r := range cfg.Resources {
		rules[i] = r.Rule
	}
	return rules
}

// newSource makes the source half: from the API server into the journal.
func (a *app) newSource(client *apiserver.Client) (*source.Source, error) {
	lost, err := a.lost()
	if err != nil {
		return nil, err
	}
	stored, err := a.journal.Cluster()
	if err != nil {
		return nil, err
	}
	c := source.Config{
		Client:        client,
		Cluster:       a.cfg.Cluster.Name,
		Rules:         Rules(a.cfg),
		Load:          a.shaper.Load(a.journal.LoadResource),
		Stored:        a.journal.Resources,
		SetScopes:     a.journal.SetScopes,
		Append:        a.append,
		Shape:         a.shaper.Shape,
		Drop:          a.journal.DropResource,
		Lost:          lost,
		Announced:     a.journal.Announced,
		StoredCluster: stored,
		Remember:      a.journal.RememberCluster,
		Log:           a.log,
	}
	if a.cfg.Cluster.OnReplaced == config.Fresh {
		c.BeginAnew = a.journal.BeginAnew
	}
	return source.New(c)
}

// lost is why the journal knows less than it should, if gaps have to say so still.
func (a *app) lost() (string, error) {
	if recovery, yes := a.journal.Recovered(); yes {
		a.recovered = true
		return "the journal was broken and begun anew (" + recovery.Reason + ")", nil
	}
	return a.journal.ResetReason()
}
