package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
)

// namePattern restricts names of sinks and rules to those that are valid as metric labels, file names and consumer names.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// takenNames are the names of sinks, or of rules, by what has them.
type takenNames map[string]string

// validate checks the name of what is at a place, a sink or a rule.
func (n takenNames) validate(rep *reporter, at, kind, name string) {
	switch first, taken := n[name]; {
	case !namePattern.MatchString(name):
		rep.addProblem(at+".name", Problem{Message: "not a name for a " + kind, Found: strconv.Quote(name),
			Expected: `lower-case letters, digits and "-", at most 63`})
	case taken:
		rep.addProblem(at+".name", Problem{Message: fmt.Sprintf("the name %q is taken by %s", name, first), Expected: "a name of its own"})
	default:
		n[name] = at
	}
}

func validateSinks(rep *reporter, all []Sink, routes []Route) {
	rep.refuseIf(len(all) == 0, "sinks", Problem{Message: "no destination for changes",
		Expected: "at least one sink, such as - {name: console, stdout: {}}"})
	names := takenNames{}
	for i, s := range all {
		at := fmt.Sprintf("sinks[%d]", i)
		if s.Name == "" {
			rep.addProblem(at+".name", Problem{Message: "the sink has no name", Expected: `a name such as "main"`})
		} else {
			names.validate(rep, at, "sink", s.Name)
		}
		validateFormat(rep, at+".format", s)
		validateRows(rep, at, s)
		rep.checkOneOf(at+".start", s.Start, StartSnapshot, StartJournal, StartNow)
		rep.checkOneOf(at+".onOversize", s.OnOversize, Reduce, DeadLetter)
		validateDestination(rep, at, s)
		validateWatermarks(rep, at+".watermarks", s, routes)
		validateDeadLetters(rep, at+".deadLetters", s.DeadLetters, all, routes)
		validateOwnFile(rep, at+".stdout.path", all, i)
		validateOwnFolder(rep, at+".history.dir", all, i)
	}
}

// validateOwnFile reports a file that an earlier sink writes to.
func validateOwnFile(rep *reporter, at string, all []Sink, i int) {
	if all[i].Stdout == nil {
		return
	}
	path := all[i].Stdout.Path
	for j, other := range all[:i] {
		if other.Stdout != nil && isSameFile(path, other.Stdout.Path) {
			rep.addProblem(at, Problem{Message: fmt.Sprintf("written to by sinks[%d] already", j), Found: strconv.Quote(path),
				Expected: `a file of its own ("" is standard output)`})
			return
		}
	}
}

// validateOwnFolder reports a folder that an earlier sink writes to.
func validateOwnFolder(rep *reporter, at string, all []Sink, i int) {
	for j, other := range all[:i] {
		if all[i].History == nil || other.History == nil {
			continue
		}
		a, b := all[i].History, other.History
		if a.Dir != "" && b.Dir != "" && isSameFile(a.Dir, b.Dir) || a.Bucket != "" && a.Bucket == b.Bucket {
			rep.addProblem(at, Problem{Message: fmt.Sprintf("written to by sinks[%d] already", j), Found: strconv.Quote(a.Where()),
				Expected: "a place of its own"})
			return
		}
	}
}

func validateFormat(rep *reporter, path string, s Sink) {
	known := "json, cloudevents, cloudevents-structured, debezium or upsert"
	if s.Stdout != nil {
		known = "json or cloudevents-structured"
	}
	if s.Webhook != nil {
		known = "cloudevents or cloudevents-structured"
	}
	f, err := s.ParseFormat()
	switch {
	case err != nil:
		rep.addProblem(path, Problem{Message: "unknown format", Found: strconv.Quote(s.Format), Expected: known})
	case s.Webhook != nil && s.Webhook.ValidateFormat(f) != nil:
		rep.addProblem(path, Problem{Message: s.Webhook.ValidateFormat(f).Error(), Found: strconv.Quote(s.Format), Expected: known})
	case s.History != nil && f != format.JSON:
		rep.addProblem(path, Problem{Message: "a history has columns of its own", Found: strconv.Quote(s.Format), Expected: "no format"})
	case s.Stdout != nil && f.NeedsHeaders():
		rep.addProblem(path, Problem{Message: "lines of a stdout sink have no key and no headers, which this format needs",
			Found: strconv.Quote(s.Format), Expected: known})
	case s.Kafka != nil && s.Kafka.Tombstones && !f.IsEnvelope():
		rep.addProblem(path, Problem{Message: "kafka.tombstones is supported with format debezium only",
			Found: strconv.Quote(s.Format), Expected: "debezium, or kafka.tombstones: false"})
	}
}

// typedFormats are those of debezium by the values of Sink.Schema: a schema in each record, or the ID of one in a registry.
var typedFormats = map[string]format.Format{"inline": format.DebeziumInline, "registry": format.DebeziumAvro}

// ParseFormat returns the format that a sink writes.
func (s Sink) ParseFormat() (format.Format, error) {
	f, err := format.Parse(s.Format)
	if f == format.Debezium {
		f = max(f, typedFormats[s.Schema])
	}
	if f == format.DebeziumAvro && s.Kafka != nil && s.Kafka.Registry.Encoding == kafka.EncodingJSON {
		f = format.DebeziumJSONSchema
	}
	return f, err
}

// HasRowsOnly reports whether the sink gets no control records.
func (s Sink) HasRowsOnly() bool { return s.RowsOnly || s.Schema != "" }

// validateRows checks that rows alone, or typed ones, are asked for where they can be, and nothing that has no row.
func validateRows(rep *reporter, at string, s Sink) {
	f, _ := s.ParseFormat()
	if s.Kafka != nil {
		rep.addJoined(at, at+".kafka", s.Kafka.ValidateRegistry(f))
	}
	switch {
	case !s.HasRowsOnly():
	case s.RowsOnly && !f.HasRows():
		rep.addProblem(at+".rowsOnly", Problem{Message: "values of this format are no rows", Found: "format: " + cmp.Or(s.Format, "json"),
			Expected: "format: debezium or upsert, or rowsOnly: false"})
	case s.Schema != "" && typedFormats[s.Schema] == 0:
		rep.checkOneOf(at+".schema", s.Schema, slices.Sorted(maps.Keys(typedFormats))...)
	case s.Schema != "" && (!f.IsTyped() || s.Kafka == nil):
		rep.addProblem(at+".schema", Problem{Message: "rows have a schema in the format debezium in Kafka only",
			Found: "format: " + cmp.Or(s.Format, "json"), Expected: "format: debezium and kafka beside it"})
	case s.Watermarks != 0:
		rep.addProblem(at+".watermarks", Problem{Message: "a watermark is no row, and this sink has rows only, by schema or rowsOnly",
			Found: s.Watermarks.String(), Expected: "0s"})
	}
}

// NeedsBefore reports whether some sink's format requires the state before an update, so that every rule has to store it,
// regardless of its own setting.
func (c *Config) NeedsBefore() bool {
	return slices.ContainsFunc(c.Sinks, func(s Sink) bool {
		f, err := s.ParseFormat()
		return err == nil && f.NeedsBefore()
	})
}

// NeedsValues reports whether some sink requires what an update has changed, from what to what, so that every rule has to
// find it, regardless of its own setting.
func (c *Config) NeedsValues() bool {
	return slices.ContainsFunc(c.Sinks, func(s Sink) bool { return s.History != nil })
}

// validateDestination checks that the sink has exactly one destination, by the sink package's own validation.
func validateDestination(rep *reporter, at string, s Sink) {
	var given []string
	var invalid error
	if s.Kafka != nil {
		given, invalid = append(given, "kafka"), s.Kafka.Validate()
	}
	if s.NATS != nil {
		given, invalid = append(given, "nats"), s.NATS.Validate()
	}
	if s.Webhook != nil {
		given, invalid = append(given, "webhook"), s.Webhook.Validate()
	}
	if s.Stdout != nil {
		given, invalid = append(given, "stdout"), s.Stdout.Validate()
	}
	if s.History != nil {
		given, invalid = append(given, "history"), s.History.Validate()
	}
	switch len(given) {
	case 0:
		rep.addProblem(at, Problem{Message: "the sink has no destination", Expected: "one of kafka, nats, webhook, stdout, history"})
	case 1:
		rep.addJoined(at, joinPath(at, given[0]), invalid)
	default:
		rep.addProblem(at, Problem{Message: "the sink has more than one destination", Found: strings.Join(given, " and "),
			Expected: "one; write a second sink for another"})
	}
}

// validateDeadLetters checks that dead letters have a sink and a topic of their own.
func validateDeadLetters(rep *reporter, at string, to DeadLetters, all []Sink, routes []Route) {
	switch {
	case to == DeadLetters{}:
	case to.Sink == "":
		rep.addProblem(at+".sink", Problem{Message: "is missing beside the topic", Expected: "the name of a sink of kafka or nats"})
	case to.Topic == "":
		rep.addProblem(at+".topic", Problem{Message: "dead letters need a topic of their own", Expected: "a template such as k8s.dead.{resource}"})
	default:
		rep.refuseIf(validateTarget(rep, at, Target(to), all) && writesChangesTo(all, routes, to), at+".topic",
			Problem{Message: "changes are written there", Found: strconv.Quote(to.Topic),
				Expected: "a template of its own, such as k8s.dead.{resource}"})
	}
}

// writesChangesTo reports whether the sink of a target, or a route, writes changes to the target's topic.
func writesChangesTo(all []Sink, routes []Route, to DeadLetters) bool {
	for _, s := range all {
		if s.Name == to.Sink && (s.Kafka != nil && s.Kafka.Topic == to.Topic || s.NATS != nil && s.NATS.Subject == to.Topic) {
			return true
		}
	}
	return slices.ContainsFunc(routes, func(r Route) bool { return slices.Contains(r.To, Target(to)) })
}

// warnSinkOverlaps warns of two sinks with one destination.
func warnSinkOverlaps(rep *reporter, c *Config) {
	for i, s := range c.Sinks {
		at := fmt.Sprintf("sinks[%d]", i)
		for j, other := range c.Sinks[:i] {
			if key := s.destinationKey(); key != "" && key == other.destinationKey() && len(c.Routes) == 0 {
				rep.addWarning(at, Problem{Message: fmt.Sprintf("has the same destination as sinks[%d]: every change arrives twice", j),
					Expected: "one of them"})
			}
		}
	}
}

// validateFileOverlaps reports files and folders of sinks in place of the journal, and warns of files within its directory.
func validateFileOverlaps(rep *reporter, c *Config) {
	if c.Journal.Dir == "" {
		return
	}
	journal := resolvePath(c.Journal.Dir)
	for i, s := range c.Sinks {
		if h := s.History; h != nil && h.Dir != "" && (isWithin(resolvePath(h.Dir), journal) || isWithin(journal, resolvePath(h.Dir))) {
			rep.addProblem(fmt.Sprintf("sinks[%d].history.dir", i), Problem{Message: "shares a folder with the journal, journal.dir",
				Found: strconv.Quote(s.History.Dir), Expected: "a folder beside it"})
		}
		if s.Stdout == nil || s.Stdout.Path == "" {
			continue
		}
		p := Problem{Found: strconv.Quote(s.Stdout.Path), Expected: "a file elsewhere"}
		switch path, at := resolvePath(s.Stdout.Path), fmt.Sprintf("sinks[%d].stdout.path", i); {
		case path == journal:
			p.Message = "is journal.dir, a directory"
			rep.addProblem(at, p)
		case isWithin(path, journal):
			p.Message = "lies within journal.dir, which belongs to the journal"
			rep.addWarning(at, p)
		}
	}
}

// destinationKey identifies the destination of a sink, without credentials; "" for stdout and history, which are checked
// otherwise.
func (s Sink) destinationKey() string {
	switch {
	case s.Kafka != nil:
		return "kafka " + strings.Join(slices.Sorted(slices.Values(s.Kafka.Brokers)), ",") + " " + s.Kafka.Topic
	case s.NATS != nil:
		return "nats " + s.NATS.URL + " " + s.NATS.StreamName() + " " + s.NATS.Subject
	case s.Webhook != nil:
		return "webhook " + s.Webhook.URL
	}
	return ""
}

// Destination identifies where a sink delivers to, without secrets. Two sinks with the same one are the same under another
// name.
func (s Sink) Destination() string {
	key := s.destinationKey()
	if s.Stdout != nil {
		key = "stdout " + s.Stdout.Path
	}
	if s.History != nil {
		key = "history " + s.History.Where()
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

func isWithin(path, dir string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && relative != ".." && !strings.HasPrefix(relative, ".."+string(filepath.Separator))
}
