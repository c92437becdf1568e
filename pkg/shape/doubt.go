package shape

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// Doubt is something suspicious that is no error.
type Doubt struct {
	Key     string // within the rule: "redactPaths[0]"
	Message string
}

// Doubts reports paths that begin with a member that only custom resources may have.
func (p Policy) Doubts() []Doubt {
	var all []Doubt
	for key, texts := range p.pathsByKey() {
		for i, text := range texts {
			parsed, err := path.Parse(text)
			if err != nil {
				continue
			}
			if first, yes := parsed.Custom(); yes {
				all = append(all, Doubt{fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf(
					"%q begins with %q, which no resource of Kubernetes itself has; it works for custom resources that have it", text, first)})
			}
		}
	}
	slices.SortFunc(all, func(a, b Doubt) int { return strings.Compare(a.Key, b.Key) })
	return all
}

func (p Policy) pathsByKey() map[string][]string {
	return map[string][]string{
		"redactPaths": p.RedactPaths, "onlyIfChanged": p.OnlyIfChanged, "ignoreChanges": p.IgnoreChanges,
		"fields.keep": p.Fields.Keep, "fields.drop": p.Fields.Drop,
	}
}
