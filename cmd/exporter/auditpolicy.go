package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func auditPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit-policy --config FILE [--stamp | policy|kubeconfig|flags|admission]",
		Short: "Print the API server configuration that attribution of changes to users needs",
		Long: `Print the API server configuration that attribution of changes to users needs.

policy      the smallest audit policy for the configured rules: writes with
            their responses, but never those of Secrets and of redactPaths
kubeconfig  the configuration of the API servers' audit webhook
flags       the flags of kube-apiserver
admission   the ValidatingAdmissionPolicy that records which objects the events
            without answers are, and its binding

Without a part it prints all. --stamp prints something else, which needs no
access to the API servers' machines: the MutatingAdmissionPolicy that writes
the author of each write into the object, and its binding. Wildcards need the cluster: they become the
resources that it serves now.`,
		Args: cobra.MaximumNArgs(1), ValidArgs: inspect.AuditParts,
	}
	path := configFlag(cmd)
	var o inspect.AuditOptions
	stamp := cmd.Flags().Bool("stamp", false, "print the admission policy that stamps objects with the author of each write, and its binding")
	cmd.Flags().StringVar(&o.Server, "server", "kubecdc.example", "host, or host:port, under which the API servers reach the exporter")
	cmd.Flags().StringVar(&o.Dir, "dir", "/etc/kubernetes/kubecdc", "directory of the files on the API servers' machines")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := config.LoadWithoutSinkFiles(*path)
		if err != nil {
			return err
		}
		if len(args) > 0 {
			o.Part = args[0]
		}
		var text string
		switch {
		case *stamp && o.Part != "":
			err = exit.With(exit.Usage, fmt.Errorf("--stamp prints no part %q: leave one of them out", o.Part))
		case *stamp:
			text, err = inspect.StampPolicy(cmd.Context(), cfg, version)
		default:
			text, err = inspect.AuditPolicy(cmd.Context(), cfg, version, o)
		}
		return printText(cmd, text, err)
	}
	return cmd
}
