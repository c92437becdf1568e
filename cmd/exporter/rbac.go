package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source"
)

func rbacCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rbac --config FILE",
		Short: "Print the least rights that a configuration needs, as YAML for kubectl apply",
		Long: `Print the least rights that a configuration needs, as YAML for kubectl apply.

Each selected resource gets one rule, list and watch: in a ClusterRole, or in a
Role in each namespace where the configuration includes namespaces by name.
Names of resources are taken as written. Wildcards ("*.apps", "*") need the
cluster: they become the resources it serves now. With --offline they stay
wildcards, which allow more.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	var o rbacOptions
	cmd.Flags().StringVar(&o.name, "name", "kubecdc", "name of the roles and bindings")
	cmd.Flags().StringVar(&o.namespace, "namespace", "kubecdc", "namespace of the service account")
	cmd.Flags().StringVar(&o.account, "service-account", "exporter", "service account that gets the rights")
	cmd.Flags().BoolVar(&o.offline, "offline", false, "ask no cluster; wildcards stay wildcards")
	cmd.Flags().BoolVar(&o.triggers, "with-triggers", false, "allow watching definitions of resources too, so that new ones are noticed sooner")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.validate(); err != nil {
			return err
		}
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		found, offline, err := selection(cmd.Context(), cfg, o.offline)
		if err != nil {
			return &environmentError{err}
		}
		o.config, o.offline = *path, offline
		_, err = fmt.Fprint(cmd.OutOrStdout(), writeRBAC(o, cfg, found))
		return err
	}
	return cmd
}

// rbacOptions are the choices for what is printed.
type rbacOptions struct {
	config                   string // path of the configuration, for the comment
	name, namespace, account string
	offline                  bool // no cluster was asked
	triggers                 bool
}

func (o rbacOptions) validate() error {
	var all []error
	for flag, problems := range map[string][]string{
		"--name":            content.IsPathSegmentName(o.name),
		"--namespace":       validation.IsDNS1123Label(o.namespace),
		"--service-account": validation.IsDNS1123Subdomain(o.account),
	} {
		if len(problems) > 0 {
			all = append(all, fmt.Errorf("%s: %s", flag, strings.Join(problems, "; ")))
		}
	}
	if o.name == "" {
		all = append(all, errors.New("--name: is empty"))
	}
	return errors.Join(all...)
}

// selection says what the rules select, and whether it did so without the cluster: it is asked only where a wildcard
// needs it and offline does not forbid it.
func selection(ctx context.Context, cfg *config.Config, offline bool) (*source.Explanation, bool, error) {
	rules := rulesOf(cfg)
	if offline || !hasWildcard(rules) {
		found, err := source.ExplainWritten(rules)
		return found, true, err
	}
	client, err := newClient(cfg)
	if err != nil {
		return nil, false, offlineHint(err)
	}
	found, err := client.Explain(ctx, rules)
	if err != nil {
		return nil, false, offlineHint(err)
	}
	if len(found.Unanswered) > 0 {
		return nil, false, offlineHint(fmt.Errorf("%s: the API server does not say what it serves", strings.Join(found.Unanswered, ", ")))
	}
	return found, false, nil
}

func offlineHint(err error) error {
	return fmt.Errorf("the configuration selects by wildcards, which need the cluster: %w; --offline does without", err)
}

func hasWildcard(rules []source.Rule) bool {
	for _, rule := range rules {
		for _, name := range rule.Select {
			if isWildcard(name) {
				return true
			}
		}
	}
	return false
}

func isWildcard(name string) bool { return strings.HasPrefix(name, "*") }
