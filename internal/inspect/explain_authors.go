package inspect

import (
	"bytes"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// authorsReport says whose writes to a resource can be named, and whose cannot, and why.
type authorsReport struct {
	Level string   `json:"level"` // that exporter audit-policy has the API server log at
	Named []string `json:"named"`
	Not   []string `json:"not"`
}

// fillAuthors says it of every resource, where anybody is to be named.
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
	a := &authorsReport{Level: "RequestResponse", Named: []string{"every write that is answered with the object, and deletes"}}
	if hidesBodies(cfg, s) {
		why := "the rule has redactPaths"
		if len(cfg.Resources[rule].RedactPaths) == 0 {
			why = "bodies of Secrets are never logged"
		}
		a.Level = "Metadata"
		a.Named = []string{"creates, by the note of the admission policy", "deletes at once"}
		if cfg.Audit.Likely {
			a.Named = append(a.Named, "other writes as likely, where one identity alone was at the object")
		} else {
			a.Not = append(a.Not, "updates, patches, and deletes that wait for finalizers or grace: "+why+", so no answer tells the version")
		}
	}
	if s.Resource.Group == "" && s.Resource.Resource == "pods" {
		a.Named = append(a.Named, "bindings and evictions, by what they change: not of pods that have not changed since the start of the exporter")
	}
	a.Not = append(a.Not, "what a list tells after lost history: it may be more than one write")
	if cfg.Resources[rule].Filter != "" {
		a.Not = append(a.Not, "what the filter leaves out, and a binding or eviction right behind that")
	}
	return a
}

// writeAuthors writes it for people.
func writeAuthors(b *bytes.Buffer, resources []resourceReport) {
	for i, r := range resources {
		a := r.Authors
		if a == nil {
			return
		}
		if i == 0 {
			b.WriteString("  who is named (objects of aggregated API servers: nobody, the log has no answer of theirs):\n")
		}
		b.WriteString("    " + r.Name + ", logged at " + a.Level + "\n")
		for _, line := range a.Named {
			b.WriteString("      + " + line + "\n")
		}
		for _, line := range a.Not {
			b.WriteString("      - " + line + "\n")
		}
	}
}
