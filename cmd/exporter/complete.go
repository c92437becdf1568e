package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// completeWithin bounds how long a shell waits for the cluster when TAB is pressed.
const completeWithin = 3 * time.Second

func completeFlag(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // the caller has just defined the flag
	}
}

// sinkNames are the sinks in the file that --config names.
func sinkNames(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return configuredNames(cmd, func(cfg *config.Config) (names []cobra.Completion) {
		for _, s := range cfg.Sinks {
			names = append(names, s.Name)
		}
		return names
	})
}

// ruleNames are the rules with a name in the file that --config names.
func ruleNames(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return configuredNames(cmd, func(cfg *config.Config) (names []cobra.Completion) {
		for _, r := range cfg.Resources {
			if r.Name != "" {
				names = append(names, r.Name)
			}
		}
		return names
	})
}

// configuredNames are the names that of finds in the file that --config names.
func configuredNames(cmd *cobra.Command, of func(*config.Config) []cobra.Completion) ([]cobra.Completion, cobra.ShellCompDirective) {
	cfg, err := config.LoadWithoutSinkFiles(cmd.Flag("config").Value.String())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return of(cfg), cobra.ShellCompDirectiveNoFileComp
}

// servedResources are the resources that the API server of a cluster serves and that can be watched, as kubectl writes them.
func servedResources(of func(cmd *cobra.Command) (config.Cluster, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		cluster, err := of(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		app.SilenceClientLogs()
		client, err := app.NewClient(&config.Config{Cluster: cluster}, version)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		found, err := client.Explain(ctx, []selection.Rule{{Select: []string{"*"}}})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, m := range found.Matches {
			names = append(names, m.Resource.String())
		}
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// clusterOfConfig is the cluster in the file that --config names.
func clusterOfConfig(cmd *cobra.Command) (config.Cluster, error) {
	cfg, err := config.LoadWithoutSinkFiles(cmd.Flag("config").Value.String())
	if err != nil {
		return config.Cluster{}, err
	}
	return cfg.Cluster, nil
}
