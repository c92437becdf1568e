package shape

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// Warning is a suspicious but valid setting.
type Warning struct {
	Key     string // within the rule: "redactPaths[0]"
	Message string
}

// Warnings reports paths that start with a member that no built-in resource of Kubernetes has.
func (p Policy) Warnings() []Warning {
	var all []Warning
	for key, texts := range p.pathsByKey() {
		for i, text := range texts {
			parsed, err := path.Parse(text)
			if err != nil {
				continue
			}
			if first, yes := parsed.CustomRoot(); yes {
				all = append(all, Warning{fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf(
					"%q starts with %q, which no built-in resource has; it can match only in custom resources", text, first)})
			}
		}
	}
	slices.SortFunc(all, func(a, b Warning) int { return strings.Compare(a.Key, b.Key) })
	return all
}

func (p Policy) pathsByKey() map[string][]string {
	return map[string][]string{
		"redactPaths": p.RedactPaths, "onlyIfChanged": p.OnlyIfChanged, "ignoreChanges": p.IgnoreChanges,
		"fields.keep": p.Fields.Keep, "fields.drop": p.Fields.Drop,
	}
}
