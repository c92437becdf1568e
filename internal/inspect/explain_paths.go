package inspect

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// maxSampledObjects is how many objects of a scope are looked at, at most.
const maxSampledObjects = 200

// pathReport says in how many objects a path of a rule finds something.
type pathReport struct {
	Key     string `json:"key"` // "redactPaths[0]"
	Path    string `json:"path"`
	Matched int    `json:"matched"`
	Objects int    `json:"objects"` // that were looked at
}

// countPaths looks at objects of each rule that has paths. What may not be read, or does not answer, is left out: its access
// says so.
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

// writePaths tells what each path matches.
func writePaths(b *bytes.Buffer, paths []pathReport) {
	for _, p := range paths {
		note := ""
		if p.Matched == 0 && p.Objects > 0 {
			note = ": a typo, or nothing has it now"
		}
		fmt.Fprintf(b, "  %s %s matches %d of %d objects%s\n", p.Key, p.Path, p.Matched, p.Objects, note)
	}
}
