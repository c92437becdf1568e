package history

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/screen/field"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
)

// The forms of answers.
const (
	Table = "table" // a line each, for people
	JSON  = "json"
	YAML  = "yaml"
	Name  = "name"  // type and name, of objects only
	Audit = "audit" // an audit event of the API server each, of changes only
)

const (
	shownChanges = 2  // changed paths on a line
	briefChanges = 8  // on a page
	shownValue   = 60 // characters of a value
	shownPath    = 400
)

const noLongerSelected = "no longer selected by the rules, and may exist"

// Printer writes answers in one form.
type Printer struct {
	Out    io.Writer
	Format string
	Single bool      // of objects: the only one is printed by itself, not in a list
	Beside io.Writer // what Audit has no form for, as lines

	Printed int       // how many objects were
	last    time.Time // of the last audit event
}

// PrintEntry writes an entry of a log or of a comparison.
func (p *Printer) PrintEntry(e *Entry) error {
	switch p.Format {
	case Table:
		_, err := io.WriteString(p.Out, e.line())
		return err
	case Audit:
		return p.printAudit(e)
	}
	return p.printValue(e)
}

// printValue writes a value as a line of JSON, or as a YAML document.
func (p *Printer) printValue(v any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	text := b.Bytes()
	if p.Format == YAML {
		var err error
		if text, err = field.AppendYAML(nil, text); err != nil {
			return err
		}
	}
	_, err := p.Out.Write(text)
	return err
}

var signs = map[string]string{"added": "+", "updated": "~", "deleted": "-", history.Left: "-", missing: "-", found: "·", "gap": "!", "attribution.gap": "!", "attributed": "·"}

// Line is an entry in words. What comes from the cluster cannot steer a terminal or reorder text.
type Line struct {
	Time    string // can be passed back as a moment
	Type    string // that of the entry
	Object  string
	Author  string // "" if there is none
	User    bool   // the author is authenticated
	Notes   []string
	Changes []string // from what to what
}

// line writes an entry for people: when, what, the author, from what to what.
func (e *Entry) line() string { return e.inWords().String() }

// String returns a line with its end.
func (l Line) String() string {
	parts := []string{l.Time + " " + signs[l.Type] + " " + l.Object}
	if l.Author != "" {
		parts = append(parts, "by "+l.Author)
	}
	if parts = append(parts, l.Notes...); len(l.Changes) > 0 {
		parts = append(parts, strings.Join(l.Changes, ", "))
	}
	return strings.Join(parts, "  ") + "\n"
}

func (e *Entry) inWords() Line {
	of := history.Key{Group: e.Group, Resource: e.Resource, Namespace: e.Namespace, Name: e.Name}
	l := Line{Time: formatTime(e.Time), Type: e.Type, Object: field.EscapeUnprintable(objectName(&of)), Changes: e.words}
	if e.Unknown != nil {
		_, what, _ := strings.Cut(e.Unknown.String(), ": ")
		if e.Type == "attribution.gap" {
			what = "authors " + what
		}
		l.Notes = []string{field.EscapeUnprintable(what)}
		return l
	}
	l.Author, l.User = field.EscapeUnprintable(cmp.Or(e.User, e.Manager)), e.User != ""
	switch e.Type {
	case missing:
		l.Notes = append(l.Notes, "gone: deleted after "+formatTime(e.NotBefore))
	case found:
		l.Notes = append(l.Notes, "found by a list")
	case history.Left:
		l.Notes = append(l.Notes, noLongerSelected)
	}
	if e.Time.Sub(e.NotBefore) >= exactWithin && !e.NotBefore.IsZero() && e.Type != missing {
		l.Notes = append(l.Notes, "not before "+formatTime(e.NotBefore))
	}
	if len(e.Changed) > 0 {
		l.Changes = describeChanges(e.Changed, shownChanges)
	}
	return l
}

// describeChanges writes the first changes, those of the spec before those of the status, and how many more there are.
func describeChanges(all []Difference, most int) (parts []string) {
	for _, d := range all[:min(most, len(all))] {
		parts = append(parts, describeChange(d))
	}
	if more := len(all) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return parts
}

func describeChange(d Difference) string {
	path := field.Truncate(field.PathOf(d.Path), shownPath)
	switch {
	case len(d.From)+len(d.To) == 0:
		return path
	case len(d.From) == 0:
		return path + ": + " + describeValue(d.To)
	case len(d.To) == 0:
		return path + ": - " + describeValue(d.From)
	}
	return path + ": " + describeValue(d.From) + " → " + describeValue(d.To)
}

func describeValue(v []byte) string { return field.Truncate(field.Describe(v), shownValue) }

// PrintDifference writes what differs in an object between two moments, a line for each field.
func (p *Printer) PrintDifference(e *Entry) error {
	if p.Format != Table {
		return p.printValue(e)
	}
	of := history.Key{Group: e.Group, Resource: e.Resource, Namespace: e.Namespace, Name: e.Name}
	if _, err := fmt.Fprintf(p.Out, "%s %s\n", signs[e.Type], field.EscapeUnprintable(objectName(&of))); err != nil {
		return err
	}
	for _, d := range e.Changed {
		if _, err := fmt.Fprintf(p.Out, "    %s\n", describeChange(d)); err != nil {
			return err
		}
	}
	return nil
}

// PrintObject writes an object as it was at a moment. at is the time for which its age is shown.
func (p *Printer) PrintObject(row *history.Row, at time.Time) error {
	p.Printed++
	var err error
	switch p.Format {
	case Name:
		kind := strings.ToLower(row.Kind)
		if row.Group != "" {
			kind += "." + row.Group
		}
		_, err = fmt.Fprintf(p.Out, "%s/%s\n", kind, row.Name)
	case Table:
		err = p.printObjectLine(row, at)
	case YAML:
		var text []byte
		if text, err = field.AppendYAML(nil, []byte(row.Object)); err == nil {
			_, err = p.Out.Write(text)
		}
	default:
		before := ",\n"
		if p.Printed == 1 {
			before = `{"apiVersion":"v1","kind":"List","metadata":{},"items":[` + "\n"
		}
		if p.Single {
			before = ""
		}
		_, err = io.WriteString(p.Out, before+row.Object)
	}
	return err
}

func (p *Printer) printObjectLine(row *history.Row, at time.Time) error {
	const form = "%-20s %-56s %-8s %-29s %s\n"
	if p.Printed == 1 {
		if _, err := fmt.Fprintf(p.Out, form, "NAMESPACE", "NAME", "AGE", "SINCE", "BY"); err != nil {
			return err
		}
	}
	var object struct {
		Metadata struct{ CreationTimestamp time.Time }
	}
	age := "?"
	if json.Unmarshal([]byte(row.Object), &object) == nil && !object.Metadata.CreationTimestamp.IsZero() && !at.IsZero() {
		age = at.Sub(object.Metadata.CreationTimestamp).Round(time.Second).String()
	}
	name := (event.Resource{Group: row.Group, Resource: row.Resource}).String() + "/" + row.Name
	line := fmt.Sprintf(form, field.EscapeUnprintable(row.Namespace), field.EscapeUnprintable(name), age, formatTime(row.Time()),
		field.EscapeUnprintable(cmp.Or(row.User, row.Manager)))
	_, err := io.WriteString(p.Out, strings.TrimRight(line, " \n")+"\n")
	return err
}

// EndObjects writes what ends a list.
func (p *Printer) EndObjects() (err error) {
	if p.Format != JSON {
		return nil
	}
	switch {
	case p.Single && p.Printed > 0:
		_, err = io.WriteString(p.Out, "\n")
	case p.Single:
	case p.Printed == 0:
		_, err = io.WriteString(p.Out, `{"apiVersion":"v1","kind":"List","metadata":{},"items":[]}`+"\n")
	default:
		_, err = io.WriteString(p.Out, "\n]}\n")
	}
	return err
}

// PrintBlames writes the fields of an object.
func (p *Printer) PrintBlames(all []Blame) error {
	if p.Format != Table {
		return p.printValue(struct {
			Fields []Blame `json:"fields"`
		}{all})
	}
	width := len(slices.MaxFunc(all, func(a, b Blame) int { return len(a.who()) - len(b.who()) }).who())
	for _, b := range all {
		sign := " "
		if b.Found {
			sign = "≤"
		}
		_, err := fmt.Fprintf(p.Out, "%s%s  %-*s  %s: %s\n", sign, formatTime(b.Since), width, b.who(), field.PathOf(b.Path), describeValue(b.Value))
		if err != nil {
			return err
		}
	}
	return nil
}

func (b Blame) who() string {
	switch {
	case b.User != "":
		return field.EscapeUnprintable(b.User)
	case b.Found || b.Manager == "":
		return "-"
	}
	return field.EscapeUnprintable(b.Manager)
}

// verbs are those of the requests that make the changes of a log. Another version that a list showed was written somehow.
var verbs = map[string]string{"added": "create", "updated": "update", found: "update", "deleted": "delete", missing: "delete"}

// printAudit writes a change as the API server's audit log has it at the level RequestResponse: a complete request for each.
// Readers of such logs order them by time alone, so that each has a later one than the one before. What is no request, such
// as a gap, goes to p.Beside as a line.
func (p *Printer) printAudit(e *Entry) error {
	verb := verbs[e.Type]
	if verb == "" {
		_, err := io.WriteString(p.Beside, "! "+e.line())
		return err
	}
	if p.last = p.last.Add(time.Microsecond); p.last.Before(e.Time) {
		p.last = e.Time
	}
	at := p.last.UTC().Format("2006-01-02T15:04:05.000000Z")
	uri := "/apis/" + e.Group + "/" + e.Version
	if e.Group == "" {
		uri = "/api/" + e.Version
	}
	if e.Namespace != "" {
		uri += "/namespaces/" + e.Namespace
	}
	ref := map[string]string{"apiGroup": e.Group, "apiVersion": e.Version, "resource": e.Resource, "namespace": e.Namespace, "name": e.Name,
		"uid": e.UID, "resourceVersion": e.ResourceVersion}
	user := map[string]string{"username": e.User} // authenticated, or absent
	for _, m := range []map[string]string{ref, user} {
		maps.DeleteFunc(m, func(_, value string) bool { return value == "" })
	}
	a := map[string]any{
		"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse", "auditID": fmt.Sprint("kubecdc-", e.sequence),
		"stage": "ResponseComplete", "verb": verb, "requestURI": uri + "/" + e.Resource + "/" + e.Name, "user": user, "objectRef": ref,
		"userAgent":      e.Manager, // a client names itself in both
		"responseStatus": map[string]any{"metadata": map[string]string{}, "code": 200}, "requestReceivedTimestamp": at, "stageTimestamp": at,
	}
	if e.object != "" {
		a["responseObject"] = json.RawMessage(e.object)
	}
	return p.printValue(a)
}
