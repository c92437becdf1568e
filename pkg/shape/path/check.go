package path

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// knownRoots are the top-level members of built-in resources. Custom resources may have others, so this list is used only to
// detect misspellings and to warn about unusual paths.
var knownRoots = []string{
	"apiVersion", "kind", "metadata", "spec", "status", "data", "stringData", "binaryData", "type", "immutable", "rules",
	"subjects", "roleRef", "aggregationRule", "webhooks", "secrets", "imagePullSecrets", "automountServiceAccountToken",
	"endpoints", "ports", "addressType", "subsets", "provisioner", "parameters", "reclaimPolicy", "volumeBindingMode",
	"allowVolumeExpansion", "mountOptions", "allowedTopologies", "handler", "overhead", "scheduling", "value",
	"globalDefault", "preemptionPolicy", "description", "revision", "template", "webhookConfiguration", "driver",
	"reason", "message", "reportingComponent", "reportingInstance", "involvedObject", "source", "firstTimestamp",
	"lastTimestamp", "count", "eventTime", "series", "action", "related", "note", "regarding", "deprecatedCount",
	"deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedSource",
}

// metadataMembers are all members of metadata, and whether they have members themselves. The API server drops others.
var metadataMembers = map[string]bool{
	"name": false, "generateName": false, "namespace": false, "selfLink": false, "uid": false, "resourceVersion": false,
	"generation": false, "creationTimestamp": false, "deletionTimestamp": false, "deletionGracePeriodSeconds": false,
	"labels": true, "annotations": true, "ownerReferences": true, "finalizers": true,
}

// eventPrefixes are prefixes that are valid in filters and events, but not in paths.
var eventPrefixes = []string{"object", "oldObject", "change", "before", "after"}

// checkReachable returns an error if a well-formed path cannot match anything.
func (p Path) checkReachable() error {
	first := p[0]
	switch {
	case first.Wildcard:
		return nil
	case strings.HasPrefix(first.Name, "$"):
		return errors.New(
			`JSONPath is not supported: remove "$." and start with a member of the object, as in spec.replicas`)
	case slices.Contains(eventPrefixes, first.Name):
		return fmt.Errorf("paths start inside the object: remove %q, as in spec.replicas", first.Name+".")
	case first.Name == "metadata":
		return p.checkMetadata()
	case (first.Name == "apiVersion" || first.Name == "kind") && len(p) > 1:
		return fmt.Errorf("%s is a single value without members", first.Name)
	}
	if !slices.Contains(knownRoots, first.Name) {
		if i := slices.IndexFunc(knownRoots, func(r string) bool { return strings.EqualFold(r, first.Name) }); i >= 0 {
			return fmt.Errorf("objects have no %q, did you mean %q?", first.Name, knownRoots[i])
		}
	}
	return nil
}

func (p Path) checkMetadata() error {
	if len(p) == 1 || p[1].Wildcard {
		return nil
	}
	name := p[1].Name
	within, known := metadataMembers[name]
	switch {
	case name == "managedFields":
		return errors.New("metadata.managedFields is always removed")
	case !known:
		return fmt.Errorf("metadata has no %q, only %s", name, strings.Join(sortedKeys(metadataMembers), ", "))
	case !within && len(p) > 2:
		return fmt.Errorf("metadata.%s is a single value without members", name)
	case (name == "labels" || name == "annotations") && len(p) == 3 && !p[2].Wildcard && !isLabelOrAnnotation(name, p[2].Name):
		return fmt.Errorf("%q is no name of %s: those are of ASCII letters, digits, \"-\", \"_\" and \".\", after a domain and \"/\" or without",
			p[2].Name, name)
	case (name == "labels" || name == "annotations") && len(p) > 3:
		return fmt.Errorf(
			`%s hold single values; a name with dots is written metadata.%s["%s"]`, name, name, p[2:].joinNames())
	}
	return nil
}

// qualifiedName is what the API server accepts as the name of a label.
var qualifiedName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// isLabelOrAnnotation reports whether labels, or annotations, can have a name. The domain of an annotation may have
// capitals.
func isLabelOrAnnotation(of, name string) bool {
	if of == "annotations" {
		name = strings.ToLower(name)
	}
	return qualifiedName.MatchString(name)
}

// joinNames returns the dotted name that the path was probably meant to be.
func (p Path) joinNames() string {
	names := make([]string, len(p))
	for i, s := range p {
		names[i] = s.Name
	}
	return strings.Join(names, ".")
}

func sortedKeys(m map[string]bool) []string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// CustomRoot returns the first member of the path, and whether only custom resources can have it.
func (p Path) CustomRoot() (first string, yes bool) {
	return p[0].Name, !p[0].Wildcard && !slices.Contains(knownRoots, p[0].Name)
}

// checkAlphabet returns an error if a name mixes Latin letters with Greek or Cyrillic ones, which look alike.
func checkAlphabet(name string) error {
	latin := strings.ContainsFunc(name, func(r rune) bool { return unicode.Is(unicode.Latin, r) })
	for _, r := range name {
		if latin && unicode.In(r, unicode.Greek, unicode.Cyrillic) {
			return fmt.Errorf("%q has the letter %c (%U), which is of another alphabet than the others", name, r, r)
		}
	}
	return nil
}

// checkName returns an error if the unquoted name of a member is probably a mistake.
func checkName(name string) error {
	// Invisible characters are reported with the file that has them.
	if i := strings.IndexFunc(name, func(r rune) bool { return r > unicode.MaxASCII && unicode.IsPrint(r) }); i >= 0 {
		r, _ := utf8.DecodeRuneInString(name[i:])
		return fmt.Errorf(`%q has the letter %c (%U); a name that really has it is written ["%s"]`, name, r, r, name)
	}
	switch _, err := strconv.ParseUint(name, 10, 64); {
	case err == nil:
		return fmt.Errorf(
			`%s is not a member name: write [*] for every element of a list, or ["%s"] for a member with that name`,
			name, name)
	case strings.Contains(name, "/"):
		return fmt.Errorf(`a name with "/" is written ["%s"]; names are separated by dots`, name)
	}
	return nil
}
