package config

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	redactedText      = "***"
	maxReferenceBytes = 1 << 20 // a larger file is hardly a secret but a wrong path
)

// resolveReference returns the value of {env: NAME} or {file: PATH}, and removes it from all later problems.
func (d *decoder) resolveReference(n *yaml.Node, path string) (string, bool) {
	const form = "a string, {env: NAME} or {file: PATH}"
	if len(n.Content) != 2 || n.Content[1].Kind != yaml.ScalarNode || n.Content[1].ShortTag() != "!!str" {
		d.addProblem(path, Problem{Line: n.Line, Message: "not a value and not a reference", Found: describeNode(n), Expected: form})
		return "", false
	}
	var value string
	var err error
	switch source, name := n.Content[0].Value, n.Content[1].Value; source {
	case "env":
		value, err = readEnvReference(name)
	case "file":
		value, err = readFileReference(name)
	default:
		d.addProblem(joinPath(path, source), Problem{Line: n.Line, Message: "unknown kind of reference", Expected: form})
		return "", false
	}
	if err != nil {
		d.addProblem(path, Problem{Line: n.Line, Message: err.Error()})
		return "", false
	}
	d.referenceValues = append(d.referenceValues, value)
	return value, true
}

func readEnvReference(name string) (string, error) {
	switch value, ok := os.LookupEnv(name); {
	case !ok:
		return "", fmt.Errorf("environment variable %s is not set", name)
	case strings.TrimSpace(value) == "":
		return "", fmt.Errorf("environment variable %s is empty", name)
	default:
		return value, nil
	}
}

// readFileReference returns the content of a file without one trailing newline, which editors add.
func readFileReference(name string) (string, error) {
	content, err := readLimited(name, maxReferenceBytes)
	if err != nil {
		return "", err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if strings.TrimSpace(value) == "" {
		return "", fmt.Errorf("file %s is empty", name)
	}
	return value, nil
}

// variablePattern matches variables of shells, manifests and templates. This package does not expand them, so a password
// "${PASSWORD}" would be used literally.
var variablePattern = regexp.MustCompile(
	`\$\{[A-Za-z_][A-Za-z0-9_]*(?::?[-?+=][^}]*)?\}|^\$[A-Z_][A-Z0-9_]*$|^\$\([A-Za-z_][A-Za-z0-9_]*\)$|\{\{.*\}\}`)

// placeholderPattern matches the values that examples have in place of a secret.
var placeholderPattern = regexp.MustCompile(`(?i)^(<.*>|change[-_ ]?me|todo|x{3,}|\*+|secret|password|redacted)$`)

// checkLiteral reports a string that cannot be meant literally: an unexpanded variable, or blanks in place of a secret. It
// returns whether the string is usable.
func (d *decoder) checkLiteral(path, text string) bool {
	name := variablePattern.FindString(text)
	switch {
	case lastKey(path) == "filter": // CEL expressions may contain strings of this form
		return true
	case name != "" && name == text && strings.HasPrefix(text, "$"):
		d.addProblem(path, Problem{Message: "variables are not replaced within values", Found: name,
			Expected: "{env: " + strings.Trim(name, "${}()") + "}"})
	case name != "":
		d.addProblem(path, Problem{Message: "variables are not replaced within values", Found: name,
			Expected: "the value written out, or {env: NAME} with a variable that holds all of it"})
	case text != "" && strings.TrimSpace(text) == "" && mayBeSecret(path):
		d.addProblem(path, Problem{Message: "holds only blanks", Expected: "a value, {env: NAME} or {file: PATH}"})
	default:
		if mayBeSecret(path) && placeholderPattern.MatchString(text) {
			d.addWarning(path, Problem{Message: "looks like a placeholder, not like a secret"})
		}
		return true
	}
	return false
}
