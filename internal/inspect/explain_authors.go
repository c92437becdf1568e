package inspect

import (
	"bytes"

	"github.com/kubecdc/kubecdc/internal/attribution/stamp"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// authorsReport lists the writes to a resource that can be attributed, and those that cannot, with the reason.
type authorsReport struct {
	Level string   `json:"level,omitempty"` // audit level that exporter audit-policy prints
	Named []string `json:"named"`
	Not   []string `json:"not"`
}

// fillAuthors sets the report of every resource, if audit is configured.
func fillAuthors(r *Report, cfg *config.Config) {
	if !cfg.Audit.Enabled() {
		return
	}
	for i := range r.Rules {
		for j := range r.Rules[i].Resources {
			resource := &r.Rules[i].Resources[j]
			resource.Authors = authorsOf(cfg, i, resource.match.Scopes[0])
		}
	}
}

func authorsOf(cfg *config.Config, rule int, s selection.Scope) *authorsReport {
	if !cfg.Audit.HasEvents() {
		return stampedAuthors(s.Resource)
	}
	a := &authorsReport{Level: "RequestResponse", Named: []string{"every write that is answered with the object, and deletes"}}
	if cfg.Audit.Stamps.Enabled && stamp.WhyUnstamped(s.Resource) == "" {
		a.Named = append(a.Named, stampedWrites)
	}
	if hidesBodies(cfg, s) {
		why := "the rule has redactPaths"
		if len(cfg.Resources[rule].RedactPaths) == 0 {
			why = "bodies of Secrets are never logged"
		}
		a.Level = "Metadata"
		a.Named = []string{"creates, by the annotation of the admission policy", "immediate deletes"}
		if cfg.Audit.Likely {
			a.Named = append(a.Named, "other writes as likely, if only one identity accessed the object")
		} else {
			a.Not = append(a.Not, "updates, patches, and deletes that wait for finalizers or grace: "+why+", so no response has the version")
		}
	}
	if s.Resource.Group == "" && s.Resource.Resource == "pods" {
		a.Named = append(a.Named, "bindings and evictions, by their effect: not of pods that have not changed since the start of the exporter")
	}
	a.Not = append(a.Not, "differences found by a list after lost history: they may be several writes")
	if cfg.Resources[rule].Filter != "" {
		a.Not = append(a.Not, "changes that the filter drops, and a binding or eviction right after one")
	}
	return a
}

const stampedWrites = "creates and updates of the object itself by stamps"

// stampedAuthors is the report where stamps are the only source.
func stampedAuthors(resource event.Resource) *authorsReport {
	if why := stamp.WhyUnstamped(resource); why != "" {
		return &authorsReport{Named: []string{}, Not: []string{"any write: it is not stamped. " + why}}
	}
	return &authorsReport{Named: []string{stampedWrites}, Not: []string{
		"deletes, and writes of subresources such as status and scale: they are not stamped",
		"writes of the control plane's own components: they are not stamped",
		"differences found by a list after lost history: they may be several writes",
	}}
}

// writeAuthors writes the reports as text.
func writeAuthors(b *bytes.Buffer, resources []resourceReport) {
	for i, r := range resources {
		a := r.Authors
		if a == nil {
			return
		}
		if i == 0 {
			b.WriteString("  attributed writes (none of aggregated API servers, because the audit log lacks their responses):\n")
		}
		b.WriteString("    " + r.Name)
		if a.Level != "" {
			b.WriteString(", logged at " + a.Level)
		}
		b.WriteString("\n")
		for _, line := range a.Named {
			b.WriteString("      + " + line + "\n")
		}
		for _, line := range a.Not {
			b.WriteString("      - " + line + "\n")
		}
	}
}
