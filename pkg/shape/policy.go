package shape

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Policy says how the changes of one rule's resources are shaped. The zero value of a field stands for its default.
type Policy struct {
	// What becomes of secret values: mask (each is written as "***"), drop (members are left out), hmac (a keyed hash,
	// so that equal values stay equal; needs redaction.key) or none. Secret are the data of Secrets and what redactPaths
	// name. none is allowed only where select names secrets itself.
	Redact string `mapstructure:"redact"`
	// Further values that are secret, in any resource of the rule: paths from the top of the object, such as
	// spec.containers[*].env[*].value. See docs/shaping.md.
	RedactPaths []string `mapstructure:"redactPaths"`
}

// Validate reports everything wrong with the policy, each problem with its path, which begins with the one given. keyed
// says that there is a key for hashes.
func (p Policy) Validate(at string, keyed bool) error {
	var all []error
	problem := func(key, format string, args ...any) {
		all = append(all, fmt.Errorf(at+"."+key+": "+format, args...))
	}
	switch {
	case !slices.Contains([]string{"", Mask, Drop, HMAC, None}, p.Redact):
		problem("redact", "unknown value: found %q, expected one of mask, drop, hmac, none", p.Redact)
	case p.Redact == HMAC && !keyed:
		problem("redact", "hmac needs a key: set redaction.key")
	case p.Redact == None && len(p.RedactPaths) > 0:
		problem("redactPaths", "means nothing with redact: none")
	}
	paths := readPaths(problem, "redactPaths", p.RedactPaths)
	for i, path := range paths {
		for _, id := range identity {
			if path != nil && path.touches(id) {
				problem("redactPaths["+strconv.Itoa(i)+"]", "%q takes in what says which object it is (%s)", p.RedactPaths[i], id)
				break
			}
		}
	}
	if _, err := grow(lastApplied, paths); err != nil {
		problem("redactPaths", "%w", err)
	}
	return errors.Join(all...)
}

// readPaths reads the paths under a key; those that are wrong are reported and read as none.
func readPaths(problem func(key, format string, args ...any), key string, texts []string) []path {
	if len(texts) > mostPaths {
		problem(key, "%d paths, at most %d are allowed", len(texts), mostPaths)
		return nil
	}
	paths := make([]path, len(texts))
	for i, text := range texts {
		var err error
		if paths[i], err = parsePath(text); err != nil {
			problem(key+"["+strconv.Itoa(i)+"]", "%w", err)
		}
	}
	return paths
}

func parsePaths(texts []string) ([]path, error) {
	var paths []path
	for _, text := range texts {
		p, err := parsePath(text)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}
