package config

import (
	"regexp"
	"strings"
)

// variablePattern finds what other programs would replace. Here it would be taken as it stands, a password among them.
var variablePattern = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*(?::?[-?+=][^}]*)?\}|^\$[A-Z_][A-Z0-9_]*$|^\$\([A-Za-z_][A-Za-z0-9_]*\)$|\{\{.*\}\}`)

// placeholderPattern finds what examples put where a secret belongs.
var placeholderPattern = regexp.MustCompile(`(?i)^(<.*>|change[-_ ]?me|todo|x{3,}|\*+|secret|password|redacted)$`)

// checkLiteral refuses a string in the file that cannot be what it was meant to be: a variable that nobody replaces, or
// blanks where a secret should be.
func (d *decoder) checkLiteral(path, text string) bool {
	name := variablePattern.FindString(text)
	switch {
	case lastKey(path) == "filter": // CEL has strings of its own
		return true
	case name != "" && name == text && strings.HasPrefix(text, "$"):
		d.addProblem(path, Problem{Message: "variables are not replaced within values", Found: name, Expected: "{env: " + strings.Trim(name, "${}()") + "}"})
	case name != "":
		d.addProblem(path, Problem{Message: "variables are not replaced within values", Found: name,
			Expected: "the value written out, or {env: NAME} with a variable that holds all of it"})
	case text != "" && strings.TrimSpace(text) == "" && mayBeSecret(path):
		d.addProblem(path, Problem{Message: "holds nothing but blanks", Expected: "a value, {env: NAME} or {file: PATH}"})
	default:
		if mayBeSecret(path) && placeholderPattern.MatchString(text) {
			d.addWarning(path, Problem{Message: "looks like a placeholder and not like a secret"})
		}
		return true
	}
	return false
}
