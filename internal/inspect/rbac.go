package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// RBACOptions are the options of [RBAC].
type RBACOptions struct {
	Config    string // path of the configuration, for the comment
	Name      string // of the roles and bindings
	Namespace string // of the service account
	Account   string // name of the service account
	Offline   bool   // query no cluster
	Triggers  bool   // include the right to watch definitions of resources
	Output    string // ForKubectl or ForHelm
}

// The values of RBACOptions.Output. Values for Helm contain no account, because the chart has it.
const (
	ForKubectl = "yaml"
	ForHelm    = "helm"
)

// Validate refuses names that are invalid in Kubernetes.
func (o RBACOptions) Validate() error {
	var all []error
	for flag, problems := range map[string][]string{
		"--name":            content.IsPathSegmentName(o.Name),
		"--namespace":       validation.IsDNS1123Label(o.Namespace),
		"--service-account": validation.IsDNS1123Subdomain(o.Account),
	} {
		if len(problems) > 0 {
			all = append(all, fmt.Errorf("%s: %s", flag, strings.Join(problems, "; ")))
		}
	}
	if o.Output != ForKubectl && o.Output != ForHelm {
		all = append(all, fmt.Errorf("--output %q is neither %s nor %s", o.Output, ForKubectl, ForHelm))
	}
	if o.Name == "" {
		all = append(all, errors.New("--name: is empty"))
	}
	return errors.Join(all...)
}

// RBAC returns the least rights that a configuration needs, as YAML for kubectl apply or as values of the chart. version is
// that of the program. The cluster is queried only if a rule has a wildcard and o.Offline is not set.
func RBAC(ctx context.Context, cfg *config.Config, version string, o RBACOptions) (string, error) {
	found, offline, err := resolveSelection(ctx, cfg, version, o.Offline)
	if err != nil {
		return "", exit.With(exit.Environment, err)
	}
	o.Offline = offline
	return writeRBAC(o, cfg, found), nil
}

// resolveSelection resolves the rules to resources, and returns whether it did so without the cluster, which is queried only
// if a rule has a wildcard and offline is not set.
func resolveSelection(ctx context.Context, cfg *config.Config, version string, offline bool) (*selection.Explanation, bool, error) {
	rules := config.SelectionRules(cfg.Resources)
	if offline || !hasWildcard(rules) {
		found, err := selection.ResolveWritten(rules)
		return found, true, err
	}
	client, err := app.NewClient(cfg, version)
	if err != nil {
		return nil, false, offlineHint(err)
	}
	found, err := client.Explain(ctx, rules)
	if err != nil {
		return nil, false, offlineHint(err)
	}
	if len(found.Unanswered) > 0 {
		return nil, false, offlineHint(fmt.Errorf("%s: discovery failed", strings.Join(found.Unanswered, ", ")))
	}
	return found, false, nil
}

func offlineHint(err error) error {
	return fmt.Errorf("the configuration has wildcards, which need the cluster: %w; --offline prints them as wildcards", err)
}

func hasWildcard(rules []selection.Rule) bool {
	for _, rule := range rules {
		for _, name := range rule.Select {
			if selection.IsWildcard(name) {
				return true
			}
		}
	}
	return false
}
