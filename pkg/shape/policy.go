package shape

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/shape/filter"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// beforeFull is what Policy.AlwaysBefore asks for; the other value is none.
const beforeFull = "full"

// Policy says how the changes of one rule's resources are shaped. The zero value of a field stands for its default.
type Policy struct {
	// What becomes of secret values: mask (each is written as "***"), drop (members are left out), hmac (a keyed hash,
	// which shows whether a value changed; needs redaction.key) or none. Secret is everything in a Secret that is not known
	// to be harmless, and what redactPaths name. none is allowed only where select names secrets itself.
	Redact string `mapstructure:"redact"`
	// Further values that are secret, in any resource of the rule: paths from the top of the object, such as
	// spec.containers[*].env[*].value. See docs/shaping.md.
	RedactPaths []string `mapstructure:"redactPaths"`
	// How hashes are made where redact is hmac.
	HMAC HashOptions `mapstructure:"hmac"`
	// What is shown of the labels and annotations of Secrets.
	SecretMetadata SecretMetadata `mapstructure:"secretMetadata"`
	// Whether updates carry the state before them: none or full. full keeps the last state of every object in the
	// journal's directory. Deletes carry the final state either way, where the API server has it. A sink that cannot do
	// without (format: debezium) makes this full for all rules.
	Before string `mapstructure:"before"`
	// How updates say what they changed: none, paths (a list of JSON Pointers), mergePatch (RFC 7396, or RFC 6902 where
	// that cannot say it) or jsonPatch (RFC 6902). All but none keep states as before: full does.
	Changed string `mapstructure:"changed"`
	// Updates are emitted only if something at these paths changed. Keeps states.
	OnlyIfChanged []string `mapstructure:"onlyIfChanged"`
	// Updates are not emitted if nothing changed but what is at these paths. Keeps states.
	IgnoreChanges []string `mapstructure:"ignoreChanges"`
	// A CEL expression over object, oldObject and change: changes for which it is false are not emitted. See
	// docs/shaping.md.
	Filter string `mapstructure:"filter"`
	// What of the objects is emitted.
	Fields Fields `mapstructure:"fields"`
}

// Fields chooses members of objects. What says which object it is always stays: apiVersion, kind, and of metadata the
// name, namespace, uid and resourceVersion.
type Fields struct {
	// Paths that are left out.
	Drop []string `mapstructure:"drop"`
	// Paths beside which all is left out; drop is applied to what they keep. Empty keeps all.
	Keep []string `mapstructure:"keep"`
}

// Validate reports everything wrong with the policy, each problem with its path, which begins with the one given. keyed
// says that there is a key for hashes.
func (p Policy) Validate(at string, keyed bool) error {
	var all []error
	problem := func(key, format string, args ...any) {
		all = append(all, fmt.Errorf(at+"."+key+": "+format, args...))
	}
	oneOf := func(key, value string, known ...string) {
		if value != "" && !slices.Contains(known, value) {
			problem(key, "unknown value: found %q, expected one of %s", value, strings.Join(known, ", "))
		}
	}
	oneOf("redact", p.Redact, Mask, Drop, HMAC, None)
	oneOf("hmac.scope", p.HMAC.Scope, scopeObject, scopeGlobal)
	oneOf("before", p.Before, "none", beforeFull)
	oneOf("changed", p.Changed, changedNone, changedPaths, changedMerge, changedPatch)
	p.validateRedaction(problem, keyed)
	if len(p.OnlyIfChanged) > 0 && len(p.IgnoreChanges) > 0 {
		problem("ignoreChanges", "means nothing beside onlyIfChanged; leave one of them out")
	}
	readTree(problem, "onlyIfChanged", p.OnlyIfChanged)
	readTree(problem, "ignoreChanges", p.IgnoreChanges)
	readTree(problem, "fields.drop", p.Fields.Drop)
	readTree(problem, "fields.keep", p.Fields.Keep)
	if p.Filter != "" {
		if _, err := filter.Compile(p.Filter, true); err != nil {
			problem("filter", "%w", err)
		}
	}
	return errors.Join(all...)
}

func (p Policy) validateRedaction(problem problemFunc, keyed bool) {
	switch {
	case p.Redact == HMAC && !keyed:
		problem("redact", "hmac needs a key: set redaction.key")
	case p.Redact == None && len(p.RedactPaths) > 0:
		problem("redactPaths", "means nothing with redact: none")
	}
	p.SecretMetadata.validateNames(problem)
	for i, named := range readTree(problem, "redactPaths", p.RedactPaths) {
		for _, id := range identityPaths {
			if named != nil && named.Overlaps(id) {
				problem("redactPaths["+strconv.Itoa(i)+"]", "%q takes in what says which object it is (%s)", p.RedactPaths[i], id)
				break
			}
		}
	}
}

// problemFunc reports what is wrong with a key.
type problemFunc func(key, format string, args ...any)

// readTree is readPaths for paths that are used together.
func readTree(problem problemFunc, key string, texts []string) []path.Path {
	paths := readPaths(problem, key, texts)
	if _, err := path.NewTree(paths); err != nil {
		problem(key, "%w", err)
	}
	return paths
}

// maxPaths bounds the paths of one kind in one rule.
const maxPaths = 100

// readPaths reads the paths under a key; those that are wrong are reported and read as none.
func readPaths(problem problemFunc, key string, texts []string) []path.Path {
	if len(texts) > maxPaths {
		problem(key, "%d paths, at most %d are allowed", len(texts), maxPaths)
		return nil
	}
	paths := make([]path.Path, len(texts))
	for i, text := range texts {
		var err error
		if paths[i], err = path.Parse(text); err != nil {
			problem(key+"["+strconv.Itoa(i)+"]", "%w", err)
		}
	}
	return paths
}

// parseAllPaths reads all paths of a policy.
func (p Policy) parseAllPaths() (redact, only, ignore, keep, drop []path.Path, err error) {
	for _, kind := range []struct {
		key   string
		texts []string
		paths *[]path.Path
	}{
		{"redactPaths", p.RedactPaths, &redact}, {"onlyIfChanged", p.OnlyIfChanged, &only}, {"ignoreChanges", p.IgnoreChanges, &ignore},
		{"fields.keep", p.Fields.Keep, &keep}, {"fields.drop", p.Fields.Drop, &drop},
	} {
		if *kind.paths, err = parsePaths(kind.texts); err != nil {
			return nil, nil, nil, nil, nil, fmt.Errorf("%s: %w", kind.key, err)
		}
	}
	return redact, only, ignore, keep, drop, nil
}

func (p Policy) redactMode() string {
	if p.Redact == "" {
		return Mask
	}
	return p.Redact
}

func parsePaths(texts []string) ([]path.Path, error) {
	var paths []path.Path
	for _, text := range texts {
		p, err := path.Parse(text)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}
