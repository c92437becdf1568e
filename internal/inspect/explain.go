package inspect

import (
	"context"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Explain queries the cluster for the resources that a configuration selects, their destinations and permissions. With a
// window above 0 it watches for that time and measures the rates. version is that of the program. It contacts no sink and
// stores nothing.
func Explain(ctx context.Context, cfg *config.Config, version string, window time.Duration) (*Report, error) {
	r, err := buildReport(ctx, cfg, version, window)
	return r, exit.With(exit.Environment, err)
}

func buildReport(ctx context.Context, cfg *config.Config, version string, window time.Duration) (*Report, error) {
	client, err := app.NewClient(cfg, version)
	if err != nil {
		return nil, err
	}
	found, err := client.Explain(ctx, config.SelectionRules(cfg.Resources))
	if err != nil {
		return nil, withRemedy(client, err)
	}
	r := newReport(cfg, found)
	r.Server = client.Host()
	if r.Cluster == "" {
		if r.Cluster, err = client.ClusterUID(ctx); err != nil {
			r.ClusterUnknown = err.Error()
		}
	}
	r.Namespaces = queryNamespaces(ctx, client, found, config.SelectionRules(cfg.Resources))
	fillDestinations(r, cfg)
	fillAuthors(r, cfg)
	scopes := r.allScopes()
	if err := fillAccess(ctx, client, scopes); err != nil {
		return nil, withRemedy(client, err)
	}
	fillWays(ctx, client, scopes)
	if err := countPaths(ctx, client, r, cfg); err != nil {
		return nil, err
	}
	if window > 0 {
		r.Window = duration(window)
		fillMeasurements(ctx, client, scopes, window)
	}
	return r, ctx.Err()
}

// withRemedy returns what the error of a request says about the API server, or the error.
func withRemedy(client *apiserver.Client, err error) error {
	if p := client.Problem(err); p.Code != "" {
		return condition.NewStatus("", p).Wrap(nil)
	}
	return err
}

// queryNamespaces returns the namespaces that do not exist or may not exist, and the globs that match none or may match
// none.
func queryNamespaces(ctx context.Context, client *apiserver.Client, found *selection.Explanation, rules []selection.Rule) []namespaceReport {
	names := found.NamedNamespaces(rules)
	all := make([]namespaceReport, len(names))
	inParallel(len(names), func(i int) {
		exists, err := client.HasNamespace(ctx, names[i])
		all[i] = namespaceReport{Name: names[i], Missing: err == nil && !exists}
		if err != nil {
			all[i].Unknown = apiserver.Reason(err)
		}
	})
	if globs := found.NamespaceGlobs(rules); len(globs) > 0 {
		existing, err := client.NamespaceNames(ctx)
		for _, g := range globs {
			one := namespaceReport{Name: g.Glob, Pattern: true, Missing: err == nil && !g.HasMatch(existing)}
			if err != nil {
				one.Unknown = apiserver.Reason(err)
			}
			all = append(all, one)
		}
	}
	return slices.DeleteFunc(all, func(n namespaceReport) bool { return !n.Missing && n.Unknown == "" })
}

// fillAccess sets the permissions of each scope.
func fillAccess(ctx context.Context, client *apiserver.Client, scopes []*scopeReport) error {
	asked := make([]selection.Scope, len(scopes))
	for i, s := range scopes {
		asked[i] = s.scope
	}
	answers, err := queryAccess(ctx, client, asked)
	if err != nil {
		return err
	}
	for i, a := range answers {
		scopes[i].List, scopes[i].Watch, scopes[i].Reason = a.list, a.watch, a.reason
	}
	return nil
}

// fillWays asks the server of every scope that is not known to be forbidden what it can do.
func fillWays(ctx context.Context, client *apiserver.Client, scopes []*scopeReport) {
	inParallel(len(scopes), func(i int) {
		s := scopes[i]
		if s.List == denied || s.Watch == denied {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, apiserver.SlowAfter)
		defer cancel()
		ways, err := source.AskWays(ctx, client, s.scope)
		if s.Reads, s.lacking = ways.String(), ways.Lacking(); err != nil {
			s.Unfollowed = apiserver.Reason(err)
		}
	})
}

// fillMeasurements measures every scope that is not known to be forbidden.
func fillMeasurements(ctx context.Context, client *apiserver.Client, scopes []*scopeReport, window time.Duration) {
	var readable []*scopeReport
	var watched []selection.Scope
	for _, s := range scopes {
		if s.List != denied && s.Watch != denied {
			readable, watched = append(readable, s), append(watched, s.scope)
		}
	}
	for i, m := range measureAll(ctx, client, watched, window) {
		measured := &measureReport{Changes: m.changes, Bytes: m.bytes, Window: duration(m.window)}
		if m.err != nil {
			measured.Error = m.err.Error()
		}
		readable[i].Measured = measured
	}
}
