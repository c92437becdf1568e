package inspect

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Report is the result of [Explain]. Its JSON form is the output of -o json, so members may be added but not renamed.
type Report struct {
	Server         string            `json:"server"`
	Cluster        string            `json:"cluster"`
	ClusterUnknown string            `json:"clusterUnknown,omitempty"` // why cluster is empty
	Sinks          []sinkReport      `json:"sinks"`
	Namespaces     []namespaceReport `json:"namespaces,omitempty"` // named by rules, and missing or of unknown existence
	Rules          []ruleReport      `json:"rules"`
	Unanswered     []string          `json:"unanswered,omitempty"` // groups without an answer to discovery
	Window         duration          `json:"window,omitempty"`     // of the measurement, if there was one
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
	Authors      *authorsReport    `json:"authors,omitempty"`

	match selection.Match
}

type scopeReport struct {
	ID         string         `json:"id"`
	Namespace  string         `json:"namespace,omitempty"` // the one watched; absent where it is all
	List       permission     `json:"list"`
	Watch      permission     `json:"watch"`
	Reason     string         `json:"reason,omitempty"`     // why a verb is not allowed
	Reads      string         `json:"reads,omitempty"`      // the ways to read that its server has, and those that it lacks
	Unfollowed string         `json:"unfollowed,omitempty"` // why it cannot be listed and watched
	Measured   *measureReport `json:"measured,omitempty"`

	scope   selection.Scope
	lacking string // of Reads, the ways that its server lacks
}

type measureReport struct {
	Window  duration `json:"window"`
	Changes uint64   `json:"changes"`
	Bytes   uint64   `json:"bytes"`
	Error   string   `json:"error,omitempty"`
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

// duration is written as the configuration writes durations.
type duration time.Duration

func (d duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }
func (d duration) String() string               { return time.Duration(d).Round(time.Millisecond).String() }

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

// pathOf returns the path of a name in the configuration.
func pathOf(rule, name int) string { return fmt.Sprintf("resources[%d].select[%d]", rule, name) }

// allScopes returns the scopes of all rules, in order.
func (r *Report) allScopes() []*scopeReport {
	var all []*scopeReport
	for _, rule := range r.Rules {
		for _, resource := range rule.Resources {
			all = append(all, resource.Scopes...)
		}
	}
	return all
}
