package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/screen/tap"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// tapFlags are the flags of tap.
type tapFlags struct {
	cluster    config.Cluster
	selected   []string
	namespaces []string
	labels     string
	filter     string
	output     *choice
	color      *choice
	once       bool
}

func tapCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tap (RESOURCE... | --select RESOURCE...) [-n NAMESPACE] [--filter CEL] [-o diff|json|yaml|name] [--once]",
		Short: "Show changes in the terminal as they happen",
		Long: `Show changes in the terminal as they happen, field by field.

They are read straight from the cluster, as run would read them. No bus and no
configuration are needed, and nothing is written to disk or to the cluster. Values of
Secrets are masked. Objects that exist already are read for comparison and not shown.

The rights needed are list and watch on what is selected.`,
		Example: `  exporter tap deployments
  exporter tap pods,events -n shop
  exporter tap --select '*' --filter 'change.type == "deleted"'
  exporter tap --select pods --filter 'object.status.phase == "Failed"' --once -o yaml`,
	}
	var f tapFlags
	flags := cmd.Flags()
	flags.StringSliceVarP(&f.selected, "select", "s", nil, `resources, as kubectl takes them: "pods", "po", "deployments.apps"; "*.cert-manager.io", "*"`)
	flags.StringSliceVarP(&f.namespaces, "namespace", "n", nil, "only these namespaces; all without")
	flags.BoolP("all-namespaces", "A", false, "all namespaces, as without -n")
	cmd.MarkFlagsMutuallyExclusive("all-namespaces", "namespace")
	flags.StringVarP(&f.labels, "selector", "l", "", "only objects with these labels, as kubectl writes it")
	flags.StringVar(&f.filter, "filter", "", "only changes for which this CEL expression over object, oldObject and change is true")
	f.output = choiceFlag(cmd, "output", "o", "form: "+strings.Join(tap.Formats, ", "), tap.Formats...)
	flags.BoolVar(&f.once, "once", false, "end after the first change that is shown")
	f.color = colorFlag(cmd)
	flags.StringVar(&f.cluster.Kubeconfig, "kubeconfig", "", "kubeconfig file; else $KUBECONFIG, else ~/.kube/config")
	flags.StringVar(&f.cluster.Context, "context", "", "context within the kubeconfig")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.selectArguments(args)
		if err := f.validate(); err != nil {
			return err
		}
		ctx, stop := untilInterrupted(cmd.Context())
		defer stop()
		out := outputWithStyles(cmd)
		p := tap.NewPrinter(out, f.output.value, f.color.useColor(out), f.once)
		client, err := app.NewClient(&config.Config{Cluster: f.cluster}, version)
		if err != nil {
			return exit.With(exit.Environment, err)
		}
		app.SilenceClientLogs()
		return tap.Cluster(ctx, tap.ClusterOptions{Client: client, Rule: f.selectionRule(), Filter: f.filter, Notes: cmd.ErrOrStderr()}, p)
	}
	return cmd
}

// selectArguments adds resources that are given as kubectl takes them: kinds and short names, in any case.
func (f *tapFlags) selectArguments(args []string) {
	for _, arg := range args {
		f.selected = append(f.selected, strings.Split(arg, ",")...)
	}
	for i, name := range f.selected {
		f.selected[i] = strings.ToLower(name)
	}
}

// selectionRule is what the flags select.
func (f *tapFlags) selectionRule() selection.Rule {
	return selection.Rule{Select: f.selected, Namespaces: selection.Namespaces{Include: f.namespaces}, LabelSelector: f.labels}
}

func (f *tapFlags) validate() error {
	if len(f.selected) == 0 {
		return fmt.Errorf("nothing to watch: give for example --select deployments.apps, or --select '*' for everything")
	}
	if err := f.selectionRule().Validate("--"); err != nil {
		return fmt.Errorf("%s", flagNames.Replace(err.Error()))
	}
	if err := (shape.Policy{Filter: f.filter}).Validate("--", false); err != nil {
		return fmt.Errorf("%s", flagNames.Replace(err.Error()))
	}
	return nil
}

// flagNames turns the paths of a rule into flags.
var flagNames = strings.NewReplacer("--.namespaces.include", "--namespace", "--.namespaces", "--namespace", "--.labelSelector", "--selector", "--.", "--")
