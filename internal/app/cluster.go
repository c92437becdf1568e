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

// SelectionRules are the rules of a configuration, in its order.
func SelectionRules(cfg *config.Config) []selection.Rule {
	rules := make([]selection.Rule, len(cfg.Resources))
	for i, r := range cfg.Resources {
		rules[i] = r.Rule
	}
	return rules
}

// newSource makes the source half: from the API server into the journal.
func (c *composition) newSource() (*source.Source, error) {
	lost, err := c.journalLossReason()
	if err != nil {
		return nil, err
	}
	stored, err := c.journal.Cluster()
	if err != nil {
		return nil, err
	}
	s := source.Config{
		Client:           c.client,
		Cluster:          c.cfg.Cluster.Name,
		Rules:            SelectionRules(c.cfg),
		Discovery:        c.replica.discoveredResources(),
		Load:             c.shaper.WrapLoad(c.journal.LoadResource),
		StoredResources:  c.journal.Resources,
		SetScopes:        c.journal.SetScopes,
		Append:           c.appendObservation,
		Shape:            c.shaper.WrapAppend,
		DropResource:     c.journal.DropResource,
		LostReason:       lost,
		BodiesFilled:     c.journal.RecordBodiesFilled,
		Flush:            c.journal.Flush,
		GapsRecorded:     c.journal.RecordGapsEmitted,
		StoredClusterUID: stored,
		RecordCluster:    c.journal.SetCluster,
		Log:              c.log,
	}
	if c.cfg.Cluster.OnReplaced == config.Fresh {
		s.ResetCluster = c.journal.ResetForCluster
	}
	return source.New(s)
}

// journalLossReason is why the journal knows less than it should, if gaps have to say so still.
func (c *composition) journalLossReason() (string, error) {
	if recovery, yes := c.journal.PendingRecovery(); yes {
		c.journalRecovered = true
		return "the journal was broken and begun anew (" + recovery.Reason + ")", nil
	}
	return c.journal.ResetReason()
}
