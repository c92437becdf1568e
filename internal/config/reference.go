package config

import (
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	redactedText      = "***"
	maxReferenceBytes = 1 << 20 // a secret larger than this is a wrong path
)

// resolveReference reads the value that {env: NAME} or {file: PATH} stands for, and remembers it as hidden.
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

// readFileReference returns the content of a file without one newline at its end, which editors add and secrets do not have.
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

// mayBeSecret says, by its name, whether the value at a path must not be shown even where it is written out in the file.
func mayBeSecret(path string) bool {
	key := strings.ToLower(lastKey(path))
	if key == "key" || strings.Contains(path, ".headers[") && key == "value" {
		return true
	}
	for _, word := range []string{"password", "secret", "token", "seed", "nkey", "credential", "jwt", "url"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}
