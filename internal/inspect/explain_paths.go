package inspect

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// pathReport is the number of objects in which a path of a rule matches.
type pathReport struct {
	Key     string `json:"key"` // "redactPaths[0]"
	Path    string `json:"path"`
	Matched int    `json:"matched"`
	Objects int    `json:"objects"`           // sampled objects
	Absent  bool   `json:"absent,omitempty"`  // no selected type has it
	Nearest string `json:"nearest,omitempty"` // the nearest path that a selected type has
}

// uncoveredPlace is a place of the same type as one that redactPaths name, which none of them covers.
type uncoveredPlace struct {
	Path string `json:"path"`
	Like string `json:"like"`
}

// countPaths matches the paths of each rule as the running exporter does. Scopes that cannot be read are skipped; their
// access shows it.
func countPaths(ctx context.Context, client *apiserver.Client, r *Report, cfg *config.Config) error {
	checker := app.NewPathChecker(client)
	for i := range r.Rules {
		var scopes []selection.Scope
		for _, resource := range r.Rules[i].Resources {
			for _, s := range resource.Scopes {
				if s.List != denied {
					scopes = append(scopes, s.scope)
				}
			}
		}
		counter, err := checker.CountPaths(ctx, cfg.Resources[i].Policy, scopes)
		if err != nil {
			return err
		}
		for _, p := range counter.Paths {
			r.Rules[i].Paths = append(r.Rules[i].Paths,
				pathReport{p.Key, p.Path, p.Matched, counter.Objects, p.Match == shape.PathAbsent, p.Nearest})
		}
		for _, u := range counter.Uncovered() {
			r.Rules[i].Uncovered = append(r.Rules[i].Uncovered, uncoveredPlace(u))
		}
	}
	return nil
}

// writeUncovered writes the places that no path covers as text.
func writeUncovered(b *bytes.Buffer, places []uncoveredPlace) {
	for _, u := range places {
		fmt.Fprintf(b, "  redactPaths leave out %s, of the same type as %s\n", u.Path, u.Like)
	}
}

// writePaths writes the matches of each path as text.
func writePaths(b *bytes.Buffer, paths []pathReport) {
	for _, p := range paths {
		note := ""
		switch {
		case p.Nearest != "":
			note = fmt.Sprintf(": no selected type has it, did you mean %s?", p.Nearest)
		case p.Absent:
			note = ": no selected type has it"
		case p.Matched == 0 && p.Objects > 0:
			note = ": no object has it now"
		}
		fmt.Fprintf(b, "  %s %s matches %d of %d objects%s\n", p.Key, p.Path, p.Matched, p.Objects, note)
	}
}
