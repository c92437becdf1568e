package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain --config FILE [--for DURATION] [-o json]",
		Short: "Say what the rules select on this cluster, where it goes and what is forbidden",
		Long: `Say what the rules select on this cluster, where it goes and what is forbidden.

The API server is asked what it serves and what the current credentials may read;
no sink is contacted, nothing is stored and nothing is written anywhere. With --for
the selected resources are watched for that long and their rates are told.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	window := cmd.Flags().Duration("for", 0, "watch this long and tell the rate of changes and bytes of each resource")
	output := cmd.Flags().StringP("output", "o", "text", "form of the answer: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *output != "text" && *output != "json" {
			return fmt.Errorf("--output %q: expected text or json", *output)
		}
		if *window < 0 {
			return fmt.Errorf("--for %v: expected a time above 0, for example 10s", *window)
		}
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		r, err := explain(cmd.Context(), cfg, *window)
		if err != nil {
			return &environmentError{err}
		}
		if *output == "json" {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(r)
		}
		return r.writeText(cmd.OutOrStdout())
	}
	return cmd
}

// explain asks the cluster about a configuration. Its errors are all the environment's.
func explain(ctx context.Context, cfg *config.Config, window time.Duration) (*report, error) {
	client, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	found, err := client.Explain(ctx, rulesOf(cfg))
	if err != nil {
		return nil, err
	}
	r := newReport(cfg, found)
	r.Server = client.Host()
	if r.Cluster == "" {
		if r.Cluster, err = client.ClusterUID(ctx); err != nil {
			r.ClusterUnknown = err.Error()
		}
	}
	fillDestinations(r, cfg)
	scopes := r.scopes()
	if err := askAccess(ctx, client, scopes); err != nil {
		return nil, err
	}
	if window > 0 {
		r.Window = duration(window)
		measure(ctx, client, scopes, window)
	}
	return r, ctx.Err()
}

func askAccess(ctx context.Context, client *source.Client, scopes []*scopeReport) error {
	asked := make([]source.Scope, len(scopes))
	for i, s := range scopes {
		asked[i] = s.scope
	}
	answers, err := client.Access(ctx, asked)
	if err != nil {
		return err
	}
	for i, a := range answers {
		scopes[i].List, scopes[i].Watch, scopes[i].Reason = a.List, a.Watch, a.Reason
	}
	return nil
}

// measure watches what is not known to be forbidden.
func measure(ctx context.Context, client *source.Client, scopes []*scopeReport, window time.Duration) {
	var readable []*scopeReport
	var watched []source.Scope
	for _, s := range scopes {
		if s.List != source.Denied && s.Watch != source.Denied {
			readable, watched = append(readable, s), append(watched, s.scope)
		}
	}
	for i, m := range client.Measure(ctx, watched, window) {
		measured := &measureReport{Changes: m.Changes, Bytes: m.Bytes, Window: duration(m.Window)}
		if m.Err != nil {
			measured.Error = m.Err.Error()
		}
		readable[i].Measured = measured
	}
}
