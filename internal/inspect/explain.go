package inspect

import (
	"context"
	"fmt"
	"slices"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Explain queries the cluster for the resources that a configuration selects, their destinations and permissions. version is
// that of the program. It contacts no sink and stores nothing.
func Explain(ctx context.Context, cfg *config.Config, version string) (*Report, error) {
	r, err := buildReport(ctx, cfg, version)
	return r, exit.With(exit.Environment, err)
}

func buildReport(ctx context.Context, cfg *config.Config, version string) (*Report, error) {
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
	scopes := r.allScopes()
	if err := fillAccess(ctx, client, scopes); err != nil {
		return nil, withRemedy(client, err)
	}
	fillWays(ctx, client, scopes)
	if err := countPaths(ctx, client, r, cfg); err != nil {
		return nil, err
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

// Report is the result of [Explain]. Its JSON form is the output of -o json, so members may be added but not renamed.
type Report struct {
	Server         string            `json:"server"`
	Cluster        string            `json:"cluster"`
	ClusterUnknown string            `json:"clusterUnknown,omitempty"` // why cluster is empty
	Sinks          []sinkReport      `json:"sinks"`
	Namespaces     []namespaceReport `json:"namespaces,omitempty"` // named by rules, and missing or of unknown existence
	Rules          []ruleReport      `json:"rules"`
	Unanswered     []string          `json:"unanswered,omitempty"` // groups without an answer to discovery
}

type sinkReport struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

type ruleReport struct {
	Path          string           `json:"path"`
	Select        []string         `json:"select"`
	Exclude       []string         `json:"exclude,omitempty"`
	Include       []string         `json:"includeNamespaces,omitempty"`
	ExcludeSpaces []string         `json:"excludeNamespaces,omitempty"`
	LabelSelector string           `json:"labelSelector,omitempty"`
	FieldSelector string           `json:"fieldSelector,omitempty"`
	Resources     []resourceReport `json:"resources"`
	Left          []nameReport     `json:"left,omitempty"`
	Unserved      []nameReport     `json:"unserved,omitempty"`
	Paths         []pathReport     `json:"paths,omitempty"`
	Uncovered     []uncoveredPlace `json:"uncovered,omitempty"`
}

type resourceReport struct {
	SelectedBy   string            `json:"selectedBy"` // path of the name that selects it
	Name         string            `json:"name"`       // as kubectl writes it
	Group        string            `json:"group"`
	Version      string            `json:"version"`
	Resource     string            `json:"resource"`
	Kind         string            `json:"kind"`
	Namespaced   bool              `json:"namespaced"`
	Scopes       []*scopeReport    `json:"scopes"`
	Destinations map[string]string `json:"destinations"` // by sink

	match selection.Match
}

type scopeReport struct {
	ID         string     `json:"id"`
	Namespace  string     `json:"namespace,omitempty"` // the one watched; absent where it is all
	List       permission `json:"list"`
	Watch      permission `json:"watch"`
	Reason     string     `json:"reason,omitempty"`     // why a verb is not allowed
	Reads      string     `json:"reads,omitempty"`      // the ways to read that its server has, and those that it lacks
	Unfollowed string     `json:"unfollowed,omitempty"` // why it cannot be listed and watched

	scope   selection.Scope
	lacking string // of Reads, the ways that its server lacks
}

type nameReport struct {
	SelectedBy string `json:"selectedBy"`
	Name       string `json:"name"`
	Reason     string `json:"reason"`
}

// namespaceReport is a namespace that a rule names and that is not known to exist, or a glob that is not known to match one.
type namespaceReport struct {
	Name    string `json:"name"`
	Pattern bool   `json:"pattern,omitempty"` // name is a glob
	Missing bool   `json:"missing"`
	Unknown string `json:"unknown,omitempty"` // why it is not known whether it exists
}

// statusText describes the problem and its remedy.
func (n namespaceReport) statusText() string {
	switch {
	case n.Missing && n.Pattern:
		return "no namespace matches; create one (it is watched from then on), or correct namespaces.include"
	case n.Pattern:
		return "whether a namespace matches is unknown: " + n.Unknown
	case n.Missing:
		return "there is no such namespace; create it (it is watched from then on), or correct namespaces.include"
	}
	return "its existence is unknown: " + n.Unknown
}

// newReport groups an explanation by rules.
func newReport(cfg *config.Config, found *selection.Explanation) *Report {
	r := &Report{Cluster: cfg.Cluster.Name, Unanswered: found.Unanswered}
	for i, rule := range cfg.Resources {
		r.Rules = append(r.Rules, ruleReport{
			Path: fmt.Sprintf("resources[%d]", i), Select: rule.Select, Exclude: rule.Exclude,
			Include: rule.Namespaces.Include, ExcludeSpaces: rule.Namespaces.Exclude,
			LabelSelector: rule.LabelSelector, FieldSelector: rule.FieldSelector, Resources: []resourceReport{},
		})
	}
	for _, m := range found.Matches {
		rule, by := &r.Rules[m.Rule], pathOf(m.Rule, m.Select)
		if m.SkipReason != "" {
			rule.Left = append(rule.Left, nameReport{by, m.Resource.String(), m.SkipReason})
			continue
		}
		rule.Resources = append(rule.Resources, newResourceReport(m, by))
	}
	for _, u := range found.Unserved {
		rule := &r.Rules[u.Rule]
		rule.Unserved = append(rule.Unserved, nameReport{pathOf(u.Rule, u.Select), u.Name, u.Reason})
	}
	return r
}

func newResourceReport(m selection.Match, by string) resourceReport {
	resource := resourceReport{
		SelectedBy: by, Name: m.Resource.String(),
		Group: m.Resource.Group, Version: m.Resource.Version, Resource: m.Resource.Resource, Kind: m.Resource.Kind,
		Namespaced: m.Namespaced, Destinations: map[string]string{}, match: m,
	}
	for _, s := range m.Scopes {
		resource.Scopes = append(resource.Scopes, &scopeReport{ID: s.ID, Namespace: s.Namespace, scope: s})
	}
	return resource
}

func pathOf(rule, name int) string { return fmt.Sprintf("resources[%d].select[%d]", rule, name) }

func (r *Report) allScopes() []*scopeReport {
	var all []*scopeReport
	for _, rule := range r.Rules {
		for _, resource := range rule.Resources {
			all = append(all, resource.Scopes...)
		}
	}
	return all
}
