package config

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/pkg/credentials"
)

// Problem is one error or warning about a configuration.
type Problem struct {
	File     string `json:"file"`               // as given to [Load]; "environment" for a value that came from an environment variable
	Path     string `json:"path,omitempty"`     // YAML path, "sinks[0].kafka.topic"; "" for the file as a whole
	Line     int    `json:"line,omitempty"`     // 1 for the first line; 0 if the problem belongs to no line
	Found    string `json:"found,omitempty"`    // the value in the file; may be empty
	Expected string `json:"expected,omitempty"` // the expected value; may be empty
	Message  string `json:"message"`            // what is wrong
}

const (
	maxQuotedBytes = 80  // of one value in a message
	maxTextBytes   = 600 // of one part of a problem
)

// longValuePattern finds quoted values and words that are too long to show.
var longValuePattern = regexp.MustCompile(`"(?:[^"\\]|\\.){` + strconv.Itoa(maxQuotedBytes) + `,}"|[^\s"]{` +
	strconv.Itoa(2*maxQuotedBytes) + `,}`)

// truncateText shortens long values in a message: a value pasted into the wrong place may be a megabyte.
func truncateText(text string) string {
	if len(text) < maxQuotedBytes {
		return text
	}
	text = longValuePattern.ReplaceAllStringFunc(text, func(value string) string {
		kept := strings.ToValidUTF8(value[:maxQuotedBytes], "") + "…"
		if value[0] == '"' {
			kept += `"`
		}
		return kept
	})
	if len(text) > maxTextBytes {
		text = strings.ToValidUTF8(text[:maxTextBytes], "") + "…"
	}
	return text
}

// escapeInvisible makes characters of a value that cannot be seen, or that a terminal acts on, visible: \u0007.
func escapeInvisible(text string) string {
	if !strings.ContainsFunc(text, isInvisible) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if isInvisible(r) && r != '\n' {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// String formats the problem on one line: "FILE:LINE: PATH: MESSAGE: found FOUND, expected EXPECTED", without empty parts.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Path != "" {
		b.WriteString(": " + p.Path)
	}
	b.WriteString(": " + p.Message)
	switch {
	case p.Found != "" && p.Expected != "":
		b.WriteString(": found " + p.Found + ", expected " + p.Expected)
	case p.Found != "":
		b.WriteString(": found " + p.Found)
	case p.Expected != "":
		b.WriteString(": expected " + p.Expected)
	}
	return strings.ReplaceAll(b.String(), "\n", " ")
}

// Error lists every problem of a configuration, sorted by line. The caller prints it and exits with code 2; nothing
// was started.
type Error struct {
	Problems []Problem // at least one
}

// Error returns one problem per line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// sortByLine sorts problems in place by line; those without a line come last, in the order they were found.
func sortByLine(problems []Problem) []Problem {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Compare(a.Line, b.Line)
	})
	return problems
}

// reporter collects the problems and warnings of one file. The decoder records where each path stands, and the sections'
// checks report by path alone. It is used by one goroutine.
type reporter struct {
	file            string
	lines           map[string]int // YAML path to the line of its key
	referenceValues []string       // values that references resolved to; removed from every text
	problems        []Problem
	warnings        []Problem
}

func newReporter(file string) *reporter { return &reporter{file: file, lines: map[string]int{}} }

// addProblem records a problem. Unless p has a line, it gets that of the path, or of its nearest parent in the file.
func (rep *reporter) addProblem(path string, p Problem) {
	rep.problems = append(rep.problems, rep.withLocation(path, p))
}

// refuseIf records a problem if a setting is bad.
func (rep *reporter) refuseIf(bad bool, path string, p Problem) {
	if bad {
		rep.addProblem(path, p)
	}
}

// warnIf records a warning if a setting is doubtful.
func (rep *reporter) warnIf(doubtful bool, path string, p Problem) {
	if doubtful {
		rep.addWarning(path, p)
	}
}

// addWarning records a valid setting that is probably a mistake.
func (rep *reporter) addWarning(path string, p Problem) {
	rep.warnings = append(rep.warnings, rep.withLocation(path, p))
}

// withLocation fills in file, path and line, removes secrets and shortens the texts.
func (rep *reporter) withLocation(path string, p Problem) Problem {
	p.File, p.Path = rep.file, path
	for at := path; p.Line == 0; at = parentOf(at) { // the line of the path, or of its nearest parent in the file
		if line, ok := rep.lines[at]; ok || at == "" {
			p.Line = max(line, 1)
		}
	}
	for _, text := range []*string{&p.Path, &p.Found, &p.Message, &p.Expected} {
		for _, secret := range rep.referenceValues {
			*text = strings.ReplaceAll(*text, secret, redactedText)
		}
		*text = escapeInvisible(truncateText(*text))
	}
	return p
}

// follows reports whether a problem may only be there because others could not be decoded: it is at or around one of them,
// or beside one and names it, or misses a key that may be that one misspelt.
func (rep *reporter) follows(p Problem, undecoded []Problem) bool {
	return slices.ContainsFunc(undecoded, func(u Problem) bool {
		return p.Path == u.Path || leadsThrough(u.Path, p.Path) || leadsThrough(p.Path, u.Path) ||
			leadsThrough(p.Path, parentOf(u.Path)) && (!rep.isSet(p.Path) || strings.Contains(p.Message, lastKey(u.Path)))
	})
}

func leadsThrough(path, outer string) bool {
	return outer == "" || strings.HasPrefix(path, outer) && len(path) > len(outer) && strings.ContainsRune(".[", rune(path[len(outer)]))
}

func parentOf(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

// isSet reports whether the file has the key at path.
func (rep *reporter) isSet(path string) bool {
	_, ok := rep.lines[path]
	return ok
}

// leadingPathPattern matches the path at the beginning of an error of a sink's own Validate.
var leadingPathPattern = regexp.MustCompile(`^([A-Za-z][\w.\[\]]*): `)

// addJoined records an error of a part's own Validate: errors joined by errors.Join are one per line, and each begins with
// its path relative to at, "kafka.topic: …". An error without a path is recorded for fallback.
func (rep *reporter) addJoined(at, fallback string, err error) {
	if err == nil {
		return
	}
	for message := range strings.SplitSeq(err.Error(), "\n") {
		path := fallback
		if m := leadingPathPattern.FindStringSubmatch(message); m != nil {
			path, message = joinPath(at, m[1]), message[len(m[0]):]
		}
		rep.addProblem(path, Problem{Message: message})
	}
}

// checkOneOf reports a value that is not in allowed, with a suggestion if one is close.
func (rep *reporter) checkOneOf(path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	p := Problem{Message: "unknown value", Found: strconv.Quote(value), Expected: "one of " + strings.Join(allowed, ", ")}
	if near := closestMatch(value, allowed); near != "" {
		p.Message = fmt.Sprintf("unknown value, did you mean %q?", near)
	}
	rep.addProblem(path, p)
}

const (
	redactedText      = "***"
	maxReferenceBytes = 1 << 20 // a larger file is hardly a secret but a wrong path
)

// readReference returns the parts of {env: NAME} or {file: PATH}.
func (d *decoder) readReference(n *yaml.Node, path string) (source, name string, ok bool) {
	const form = "a string, {env: NAME} or {file: PATH}"
	if len(n.Content) != 2 || n.Content[1].Kind != yaml.ScalarNode || n.Content[1].ShortTag() != "!!str" {
		d.addProblem(path, Problem{Line: n.Line, Message: "not a value and not a reference", Found: describeNode(n), Expected: form})
		return "", "", false
	}
	source, name = n.Content[0].Value, n.Content[1].Value
	if ok = source == "env" || source == "file"; !ok {
		d.addProblem(joinPath(path, source), Problem{Line: n.Line, Message: "unknown kind of reference", Expected: form})
	}
	return source, name, ok
}

// resolveReference returns the value of a reference, and removes it from all later problems.
func (d *decoder) resolveReference(n *yaml.Node, path, source, name string) (string, bool) {
	read := readFileReference
	if source == "env" {
		read = readEnvReference
	}
	value, err := read(name)
	if err != nil {
		d.addProblem(path, Problem{Line: n.Line, Message: err.Error()})
		return "", false
	}
	d.referenceValues = append(d.referenceValues, value)
	return value, true
}

// noteSecretFile records the file of a secret, which is checked with all other files, and hides what it has now.
func (d *decoder) noteSecretFile(path, name string) {
	d.secretFiles = append(d.secretFiles, credentials.File{Key: path, Path: name})
	if value, err := readFileReference(name); err == nil {
		d.secrets, d.referenceValues = append(d.secrets, value), append(d.referenceValues, value)
	}
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
