package inspect

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// maxSampledObjects bounds the objects of a scope that are sampled.
const maxSampledObjects = 200

// pathReport is the number of objects in which a path of a rule matches.
type pathReport struct {
	Key     string `json:"key"` // "redactPaths[0]"
	Path    string `json:"path"`
	Matched int    `json:"matched"`
	Objects int    `json:"objects"` // sampled objects
}

// countPaths samples objects of each rule that has paths. Scopes that cannot be read are skipped; their access shows it.
func countPaths(ctx context.Context, client *apiserver.Client, r *Report, cfg *config.Config) error {
	for i := range r.Rules {
		counter, err := cfg.Resources[i].NewPathCounter()
		if err != nil {
			return err
		}
		if len(counter.Paths) == 0 {
			continue
		}
		for _, resource := range r.Rules[i].Resources {
			for _, s := range resource.Scopes {
				if s.List != denied && ctx.Err() == nil {
					_ = sampleObjects(ctx, client, s.scope, maxSampledObjects, counter.AddObject)
				}
			}
		}
		for _, p := range counter.Paths {
			r.Rules[i].Paths = append(r.Rules[i].Paths, pathReport{p.Key, p.Path, p.Matched, counter.Objects})
		}
	}
	return nil
}

// writePaths writes the matches of each path as text.
func writePaths(b *bytes.Buffer, paths []pathReport) {
	for _, p := range paths {
		note := ""
		if p.Matched == 0 && p.Objects > 0 {
			note = ": a typo, or no object has it now"
		}
		fmt.Fprintf(b, "  %s %s matches %d of %d objects%s\n", p.Key, p.Path, p.Matched, p.Objects, note)
	}
}
