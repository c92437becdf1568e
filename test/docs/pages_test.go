package docs

import (
	"regexp"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// firstWords bounds the passage that explains a page: it has to fit the first screen, also on a phone.
const firstWords = 110

// TestEveryPageBeginsWithItsPurpose: below the title comes a paragraph from which a reader can decide whether to go on. The
// records of decisions have theirs in the title.
func TestEveryPageBeginsWithItsPurpose(t *testing.T) {
	for path, p := range pages(t) {
		if strings.HasPrefix(path, "docs/adr/") {
			continue
		}
		var words []string
		for _, l := range p.Lines {
			text := strings.TrimSpace(l.Text)
			if len(words) == 0 && (text == "" || strings.HasPrefix(text, "# ")) || strings.HasPrefix(text, "<!--") {
				continue
			}
			if text == "" || l.Block || strings.ContainsAny(text[:1], "#|![<") && !strings.HasPrefix(text, "[") {
				break
			}
			words = append(words, strings.Fields(text)...)
		}
		if len(words) < 5 || len(words) > firstWords {
			t.Errorf("%s begins with %d words, want 5 to %d: %s", path, len(words), firstWords, strings.Join(words, " "))
		}
	}
}

var codeName = regexp.MustCompile("`([A-Z]+[a-z]+(?:[A-Z][A-Za-z]*)+)`")

// TestTheTreeReachesEveryCondition and no other name: a symptom without a way to its code is a dead end.
func TestTheTreeReachesEveryCondition(t *testing.T) {
	reached := map[string]int{}
	for _, l := range pages(t)["docs/troubleshooting.md"].Lines {
		for _, m := range codeName.FindAllStringSubmatch(l.Text, -1) {
			reached[m[1]] = l.Number
		}
	}
	delete(reached, "OOMKilled") // a reason of Kubernetes
	for _, k := range condition.Kinds() {
		if reached[string(k.Code)] == 0 {
			t.Errorf("no symptom leads to %s", k.Code)
		}
		delete(reached, string(k.Code))
	}
	for name, line := range reached {
		t.Errorf("docs/troubleshooting.md:%d: there is no condition %s", line, name)
	}
}
