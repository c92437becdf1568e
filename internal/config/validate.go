package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/nearest"
)

// validateSections checks a decoded configuration, section by section: what needs several values, or more than a type.
func validateSections(rep *reporter, c *Config) {
	validateCharacters(rep, c)
	validateCluster(rep, c.Cluster)
	validateRedaction(rep, c.Redaction)
	validateResources(rep, c.Resources, c.Redaction.Key != "")
	validateSinks(rep, c.Sinks, c.Routes)
	validateJournal(rep, c.Journal)
	validateDelivery(rep, c.Delivery)
	validateAudit(rep, c.Audit)
	validateAdmin(rep, c.Admin)
	rep.checkOneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	rep.checkOneOf("log.format", c.Log.Format, "text", "json")
}

// validateRelations checks what sections say of each other. All that was given has been decoded.
func validateRelations(rep *reporter, c *Config) {
	validateRoutes(rep, c)
	validateState(rep, c)
	validateElection(rep, c)
	rep.refuseIf(c.Admin.Listen != "" && c.Admin.Listen == c.Audit.Webhook.Listen, "audit.webhook.listen",
		Problem{Message: "has the address of admin.listen", Found: strconv.Quote(c.Admin.Listen), Expected: "another port"})
	validateFileOverlaps(rep, c)
}

// warnSuspicious warns of valid settings that are probably mistakes. c has no problems.
func warnSuspicious(rep *reporter, c *Config) {
	warnResources(rep, c.Resources)
	warnSinkOverlaps(rep, c)
	validateReach(rep, c)
	warnUnusedKeys(rep, c)
	warnJournalBounds(rep, c.Journal)
}

// warnUnusedKeys warns of values that have no effect because their section is off.
func warnUnusedKeys(rep *reporter, c *Config) {
	const intake, bus, lease = "audit.webhook or audit.kafka", "state.sink", "election.lease"
	const source, stamps = intake + ", or audit.stamps.enabled", "audit.stamps.enabled: true"
	defaults := Default()
	audit, events, state, election := c.Audit.Enabled(), c.Audit.HasEvents(), c.State.Enabled(), c.Election.Enabled()
	for _, k := range []struct {
		path             string
		enabled, changed bool
		needs            string
	}{
		{"audit.stamps.grace", c.Audit.Stamps.Enabled, c.Audit.Stamps.Grace != defaults.Audit.Stamps.Grace, stamps},
		{"audit.settle", events, c.Audit.Settle != defaults.Audit.Settle, intake},
		{"audit.window", audit, c.Audit.Window != defaults.Audit.Window, source},
		{"audit.countersEvery", events, c.Audit.CountersEvery != defaults.Audit.CountersEvery, intake},
		{"audit.clockSkew", events, c.Audit.ClockSkew != defaults.Audit.ClockSkew, intake},
		{"audit.maxPending", audit, c.Audit.MaxPending != defaults.Audit.MaxPending, source},
		{"state.name", state, c.State.Name != defaults.State.Name, bus},
		{"admin.signals.allowCleartextCredentials", c.Admin.Signals.Token != credentials.Secret{}, c.Admin.Signals.AllowCleartextCredentials, "admin.signals.token"},
		{"election.duration", election, c.Election.Duration != defaults.Election.Duration, lease},
		{"election.yieldAfter", election, c.Election.YieldAfter != defaults.Election.YieldAfter, lease},
	} {
		rep.warnIf(k.changed && !k.enabled, k.path, Problem{Message: "has no effect without " + k.needs})
	}
}

// validateCharacters reports strings with characters that cannot be seen, wherever they come from: they do not reach a name,
// a path or an address on purpose. Secrets may have any.
func validateCharacters(rep *reporter, c *Config) {
	forEachString(reflect.ValueOf(c).Elem(), "", func(path, text string) {
		if mayBeSecret(path) && !namesFile(path) {
			return
		}
		at := strings.IndexFunc(text, func(r rune) bool {
			return isInvisible(r) && (lastKey(path) != "filter" || !strings.ContainsRune("\n\t\r", r))
		})
		if at >= 0 {
			r := []rune(text[at:])[0]
			rep.addProblem(path, Problem{Message: fmt.Sprintf("contains the invisible character %U at position %d", r, at+1),
				Found: strconv.QuoteToASCII(text), Expected: "visible characters"})
		} else if text != "" && strings.TrimSpace(text) == "" && slices.Contains(namesOfFiles, lastKey(path)) {
			rep.addProblem(path, Problem{Message: "holds only blanks", Found: strconv.Quote(text), Expected: "a path"})
		}
	})
}

// namesOfFiles are the keys of paths of which nothing else checks that they have visible characters.
var namesOfFiles = []string{"dir", "path"}

// isInvisible reports whether a character cannot be seen, or changes how its neighbors are shown: control and format
// characters, and blanks other than a space.
func isInvisible(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r != ' ' && unicode.IsSpace(r) || r == unicode.ReplacementChar
}

func forEachString(v reflect.Value, path string, f func(path, text string)) {
	switch v.Kind() {
	case reflect.String:
		f(path, v.String())
	case reflect.Pointer:
		if !v.IsNil() {
			forEachString(v.Elem(), path, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			forEachString(v.Index(i), path+"["+strconv.Itoa(i)+"]", f)
		}
	case reflect.Struct:
		fields := fieldsOf(v.Type())
		for _, key := range keysInStructOrder(fields) {
			forEachString(v.FieldByIndex(fields[key].index), joinPath(path, key), f)
		}
	}
}

// field locates the struct field of a key.
type field struct {
	index []int // for reflect's FieldByIndex
	order int   // position in the struct, for messages and documents
}

// fieldsOf maps the keys of a struct to its fields. Keys are the mapstructure tags, exactly as written; a field without a
// tag is not part of the file, and the fields of one with ",squash" belong to the outer struct.
func fieldsOf(t reflect.Type) map[string]field {
	fields := map[string]field{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
		switch {
		case options == "squash":
			for key, inner := range fieldsOf(f.Type) {
				fields[key] = field{index: append([]int{i}, inner.index...), order: i<<16 + inner.order>>8}
			}
		case name != "" && name != "-":
			fields[name] = field{index: []int{i}, order: i << 16}
		}
	}
	return fields
}

func keysInStructOrder(fields map[string]field) []string {
	return slices.SortedFunc(maps.Keys(fields), func(a, b string) int { return fields[a].order - fields[b].order })
}

func joinKeys(fields map[string]field) string { return strings.Join(keysInStructOrder(fields), ", ") }

func unknownKeyProblem(key *yaml.Node, known map[string]field) Problem {
	p := Problem{Line: key.Line, Message: "unknown key", Expected: "one of " + joinKeys(known)}
	if near := closestMatch(key.Value, keysInStructOrder(known)); near != "" {
		p.Message = `unknown key, did you mean "` + near + `"?`
	}
	return p
}

// closestMatch returns the candidate that word was probably meant to be, or "".
func closestMatch(word string, candidates []string) string { return nearest.Name(word, candidates) }
