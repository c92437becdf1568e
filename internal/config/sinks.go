package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/format"
)

// sinkNamePattern keeps names fit for metrics labels, file names and consumer names alike.
var sinkNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (d *decoder) validateSinks(all []Sink) {
	if len(all) == 0 {
		d.addProblem("sinks", Problem{Message: "changes go nowhere", Expected: "at least one sink, such as - {name: console, stdout: {}}"})
	}
	names := map[string]string{}
	for i, s := range all {
		at := fmt.Sprintf("sinks[%d]", i)
		switch first, taken := names[s.Name]; {
		case s.Name == "":
			d.addProblem(at+".name", Problem{Message: "the sink has no name", Expected: `a name such as "main"`})
		case !sinkNamePattern.MatchString(s.Name):
			d.addProblem(at+".name", Problem{Message: "not a name for a sink", Found: strconv.Quote(s.Name), Expected: `lower-case letters, digits and "-", at most 63`})
		case taken:
			d.addProblem(at+".name", Problem{Message: fmt.Sprintf("the name %q is taken by %s", s.Name, first), Expected: "a name of its own"})
		default:
			names[s.Name] = at
		}
		d.validateFormat(at+".format", s)
		d.checkOneOf(at+".onOversize", s.OnOversize, Reduce, DeadLetter)
		d.validateDestination(at, s)
		d.validateDeadLetters(at+".deadLetters", s.DeadLetters, all)
		if s.Stdout == nil {
			continue
		}
		for j, other := range all[:i] {
			if other.Stdout != nil && isSameFile(s.Stdout.Path, other.Stdout.Path) {
				d.addProblem(at+".stdout.path", Problem{Message: fmt.Sprintf("written to by sinks[%d] already", j), Found: strconv.Quote(s.Stdout.Path),
					Expected: `a file of its own ("" is standard output)`})
				break
			}
		}
	}
}

func (d *decoder) validateFormat(path string, s Sink) {
	known := "json, cloudevents, cloudevents-structured, debezium or upsert"
	if s.Stdout != nil {
		known = "json or cloudevents-structured"
	}
	if s.Webhook != nil {
		known = "cloudevents or cloudevents-structured"
	}
	f, err := format.Parse(s.Format)
	switch {
	case err != nil:
		d.addProblem(path, Problem{Message: "unknown format", Found: strconv.Quote(s.Format), Expected: known})
	case s.Webhook != nil && s.Webhook.ValidateFormat(f) != nil:
		d.addProblem(path, Problem{Message: s.Webhook.ValidateFormat(f).Error(), Found: strconv.Quote(s.Format), Expected: known})
	case s.Stdout != nil && f.NeedsHeaders():
		d.addProblem(path, Problem{Message: "a line of stdout has no key and no headers, which this format needs",
			Found: strconv.Quote(s.Format), Expected: known})
	case s.Kafka != nil && s.Kafka.Tombstones && f != format.Debezium:
		d.addProblem(path, Problem{Message: "only readers of debezium expect the records of kafka.tombstones",
			Found: strconv.Quote(s.Format), Expected: "debezium, or kafka.tombstones: false"})
	}
}

// NeedsBefore says whether a sink's format cannot do without the state before an update, so that every rule has to keep
// it, whatever its own setting is.
func (c *Config) NeedsBefore() bool {
	return slices.ContainsFunc(c.Sinks, func(s Sink) bool {
		f, err := format.Parse(s.Format)
		return err == nil && f.NeedsBefore()
	})
}

// validateDestination sees to it that the sink goes to one place, and asks the sink's own package about it.
func (d *decoder) validateDestination(at string, s Sink) {
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
	switch len(given) {
	case 0:
		d.addProblem(at, Problem{Message: "the sink has no destination", Expected: "one of kafka, nats, webhook, stdout"})
	case 1:
		d.addJoined(at, joinPath(at, given[0]), invalid)
	default:
		d.addProblem(at, Problem{Message: "the sink has more than one destination", Found: strings.Join(given, " and "),
			Expected: "one; write a second sink for another"})
	}
}

// leadingPathPattern finds the path that begins an error of a part's own Validate.
var leadingPathPattern = regexp.MustCompile(`^([A-Za-z][\w.\[\]]*): `)

// addJoined turns what a part says of its own configuration into problems: errors joined by errors.Join are one a line, and
// each begins with its path relative to at, "kafka.topic: …". One without a path is reported for fallback.
func (d *decoder) addJoined(at, fallback string, err error) {
	if err == nil {
		return
	}
	for message := range strings.SplitSeq(err.Error(), "\n") {
		path := fallback
		if m := leadingPathPattern.FindStringSubmatch(message); m != nil {
			path, message = joinPath(at, m[1]), message[len(m[0]):]
		}
		d.addProblem(path, Problem{Message: message})
	}
}

// validateDeadLetters sees to it that dead letters have a topic that nothing else goes to.
func (d *decoder) validateDeadLetters(at string, to DeadLetters, all []Sink) {
	switch {
	case to == DeadLetters{}:
	case to.Sink == "":
		d.addProblem(at+".sink", Problem{Message: "is missing beside the topic", Expected: "the name of a sink of kafka or nats"})
	case to.Topic == "":
		d.addProblem(at+".topic", Problem{Message: "dead letters need a topic of their own", Expected: "a template such as k8s.dead.{resource}"})
	default:
		d.validateTarget(at, Target(to), all)
	}
}
