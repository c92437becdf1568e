package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
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
wildcards, which allow more.

The names are those of deploy/kustomize. With -o helm the rights are printed as
values of deploy/helm/kubecdc.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	var o inspect.RBACOptions
	cmd.Flags().StringVarP(&o.Output, "output", "o", inspect.ForKubectl, "yaml: for kubectl apply; helm: values of the chart")
	cmd.Flags().StringVar(&o.Name, "name", "kubecdc-exporter", "name of the roles and bindings")
	cmd.Flags().StringVar(&o.Namespace, "namespace", "kubecdc", "namespace of the service account")
	cmd.Flags().StringVar(&o.Account, "service-account", "exporter", "service account that gets the rights")
	cmd.Flags().BoolVar(&o.Offline, "offline", false, "ask no cluster; wildcards stay wildcards")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Validate(); err != nil {
			return err
		}
		cfg, err := config.LoadWithoutSinkFiles(*path)
		if err != nil {
			return err
		}
		o.Config = *path
		yaml, err := inspect.RBAC(cmd.Context(), cfg, version, o)
		return printText(cmd, yaml, err)
	}
	return cmd
}
