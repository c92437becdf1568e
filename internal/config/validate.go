package config

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// validateAll makes the checks that need more than one value, or more than a type.
func (d *decoder) validateAll(c *Config) {
	d.validateCluster(c.Cluster)
	d.validateRedaction(c.Redaction)
	d.validateResources(c.Resources, c.Redaction.Key != "")
	d.validateSinks(c.Sinks)
	d.validateRoutes(c)
	d.validateJournal(c.Journal)
	d.validateDelivery(c.Delivery)
	d.validateAudit(c.Audit)
	d.validateState(c)
	d.validateElection(c)
	d.validateListen("admin.listen", c.Admin.Listen)
	d.checkOneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	d.checkOneOf("log.format", c.Log.Format, "text", "json")
}

func (d *decoder) validateCluster(c Cluster) {
	if strings.ContainsRune(c.Name, '/') {
		d.addProblem("cluster.name", Problem{Message: `holds a "/", which separates the parts of a change's ID`, Found: strconv.Quote(c.Name),
			Expected: `a name such as "prod-eu1"`})
	}
	d.checkOneOf("cluster.onReplaced", c.OnReplaced, Fail, Fresh)
	if c.Kubeconfig != "" {
		d.validateKubeconfig(c)
	}
}

func (d *decoder) validateResources(rules []Resource, keyed bool) {
	if len(rules) == 0 {
		d.addProblem("resources", Problem{Message: "nothing is selected", Expected: `at least one rule, such as - select: ["pods", "deployments.apps"]`})
	}
	for i, r := range rules {
		at := fmt.Sprintf("resources[%d]", i)
		d.addJoined("", at, r.Rule.Validate(at))
		d.addJoined("", at, r.Policy.Validate(at, keyed))
		d.validateSecretExposure(at, r)
		d.validateSelectedOnce(at, rules[:i], r)
		d.validateNamespaces(at+".namespaces", r.Namespaces)
	}
}

// validateSelectedOnce sees to it that every name selects something: of several rules the first that selects a resource has it
// alone, whatever its namespaces and selectors are.
func (d *decoder) validateSelectedOnce(at string, earlier []Resource, r Resource) {
	for j, name := range r.Select {
		path := fmt.Sprintf("%s.select[%d]", at, j)
		before := selection.Rule{Select: r.Select[:j]}
		if k, taken := before.SelectsAll(name); taken && !selection.IsWildcard(before.Select[k]) {
			d.addProblem(path, Problem{Message: fmt.Sprintf("%q is selected already by %s.select[%d]", name, at, k), Expected: "every resource once"})
			continue
		}
		for i, first := range earlier {
			k, taken := first.SelectsAll(name)
			if !taken {
				continue
			}
			p := Problem{Message: fmt.Sprintf("%q is selected already by resources[%d].select[%d]", name, i, k), Expected: "every resource once"}
			if first.Select[k] != name {
				p.Message = fmt.Sprintf("%q is never reached: resources[%d].select[%d], %q, has taken it", name, i, k, first.Select[k])
				p.Expected = fmt.Sprintf("this rule before resources[%d], or %q among the exclude of that", i, name)
			}
			d.addProblem(path, p)
			break
		}
	}
}

// minRedactionKeyBytes is the length from which a key cannot be found by trying, in bytes.
const minRedactionKeyBytes = 16

func (d *decoder) validateRedaction(r Redaction) {
	expected := fmt.Sprintf("at least %d random bytes, such as {file: /etc/kubecdc/redaction.key}", minRedactionKeyBytes)
	different := map[byte]bool{}
	for i := range len(r.Key) {
		different[r.Key[i]] = true
	}
	switch {
	case r.Key == "":
	case len(r.Key) < minRedactionKeyBytes:
		d.addProblem("redaction.key", Problem{Message: "too short", Expected: expected})
	case strings.TrimSpace(r.Key) == "":
		d.addProblem("redaction.key", Problem{Message: "holds nothing but blanks", Expected: expected})
	case len(different) < minDistinctKeyBytes:
		d.addProblem("redaction.key", Problem{Message: "easily guessed: it repeats a few signs", Expected: expected})
	}
}

// minDistinctKeyBytes is how many different bytes a key has at least; 16 random ones have fewer once in a million million times.
const minDistinctKeyBytes = 5

// validateSecretExposure sees to it that nobody shows Secrets without having named them.
func (d *decoder) validateSecretExposure(at string, r Resource) {
	if r.Redact != shape.None {
		return
	}
	if i, yes := r.SelectsByWildcard(event.Resource{Resource: "secrets"}); yes {
		d.addProblem(at+".redact", Problem{Message: fmt.Sprintf("none would show every Secret, which %s.select[%d] takes in by a wildcard", at, i),
			Expected: `a rule of its own that selects "secrets" by name, or "secrets" among the rule's exclude`})
	}
}

// validateNamespaces reports what would select nothing; the rule itself checks the names.
func (d *decoder) validateNamespaces(at string, n selection.Namespaces) {
	for i, name := range n.Exclude {
		if slices.Contains(n.Include, name) {
			d.addProblem(fmt.Sprintf("%s.exclude[%d]", at, i), Problem{Message: fmt.Sprintf("namespace %q is included and excluded", name)})
		}
	}
}

func (d *decoder) validateJournal(j Journal) {
	if j.Dir == "" {
		d.addProblem("journal.dir", Problem{Message: "is empty", Expected: "a directory"})
	}
	if j.MaxBytes < minJournalBytes {
		d.addProblem("journal.maxBytes", Problem{Message: "too small", Found: j.MaxBytes.String(), Expected: "at least " + minJournalBytes.String()})
	}
	if j.MaxDeadLetters < minDeadLetterBytes {
		d.addProblem("journal.maxDeadLetters", Problem{Message: "too small", Found: j.MaxDeadLetters.String(), Expected: "at least " + minDeadLetterBytes.String()})
	}
	d.checkOneOf("journal.sync", j.Sync, "always", "interval")
}

const (
	minJournalBytes    Bytes = 16 << 20 // below it the store's own files are most of it
	minDeadLetterBytes Bytes = 1 << 20
	minWindowBytes     Bytes = 1 << 20 // the largest object etcd stores is 1.5 MiB; a smaller window moves one at a time
)

func (d *decoder) validateDelivery(c Delivery) {
	if c.Retry.Min <= 0 {
		d.addProblem("delivery.retry.min", Problem{Message: "must be more than zero", Found: c.Retry.Min.String(), Expected: expectDuration})
	}
	if c.Retry.Max < c.Retry.Min {
		d.addProblem("delivery.retry.max", Problem{Message: "less than delivery.retry.min", Found: c.Retry.Max.String(), Expected: "at least " + c.Retry.Min.String()})
	}
	if c.Window < minWindowBytes {
		d.addProblem("delivery.window", Problem{Message: "too small", Found: c.Window.String(), Expected: "at least " + minWindowBytes.String()})
	}
	if c.Rate.PerSecond < 0 {
		d.addProblem("delivery.rate.perSecond", Problem{Message: "must not be negative", Found: fmt.Sprint(c.Rate.PerSecond), Expected: "changes per second; 0 for no bound"})
	}
	if c.Rate.Burst < 0 {
		d.addProblem("delivery.rate.burst", Problem{Message: "must not be negative", Found: strconv.Itoa(c.Rate.Burst), Expected: "a number of changes"})
	}
	if c.Rate.Burst > 0 && c.Rate.PerSecond == 0 {
		d.addProblem("delivery.rate.burst", Problem{Message: "means nothing without delivery.rate.perSecond", Found: strconv.Itoa(c.Rate.Burst)})
	}
}

func (d *decoder) validateListen(path, listen string) {
	if listen == "" {
		return
	}
	p := Problem{Message: "not an address to listen on", Found: strconv.Quote(listen), Expected: `host:port, such as "127.0.0.1:8080" or ":8080"`}
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		d.addProblem(path, p)
		return
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		p.Message = "no port that can be listened on"
		d.addProblem(path, p)
	}
}

// checkOneOf reports a value that is none of the allowed ones.
func (d *decoder) checkOneOf(path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	p := Problem{Message: "unknown value", Found: strconv.Quote(value), Expected: "one of " + strings.Join(allowed, ", ")}
	if near := closestMatch(value, allowed); near != "" {
		p.Message = fmt.Sprintf("unknown value, did you mean %q?", near)
	}
	d.addProblem(path, p)
}
