package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// validateAdmin checks the address of the admin server, and that no token crosses a network in cleartext by accident.
func validateAdmin(rep *reporter, a Admin) {
	validateListen(rep, "admin.listen", a.Listen)
	const at = "admin.signals.token"
	switch {
	case a.Signals.Token == credentials.Secret{}:
	case a.Listen == "":
		rep.addProblem(at, Problem{Message: "has no effect without admin.listen", Expected: "admin.listen, or no token"})
	case !a.Signals.AllowCleartextCredentials && !isLoopbackAddress(a.Listen):
		rep.addProblem(at, Problem{Message: "lets tokens cross the network in cleartext: the admin server has no TLS",
			Found: "admin.listen " + strconv.Quote(a.Listen), Expected: "an address of loopback, or " +
				"admin.signals.allowCleartextCredentials: true if the network is trusted, or clients come by kubectl port-forward or a proxy with TLS"})
	}
}

// isLoopbackAddress reports whether host:port is reached from this machine only.
func isLoopbackAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "localhost" {
		return err == nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func validateToken(rep *reporter, token credentials.Secret) {
	if token == (credentials.Secret{}) {
		return
	}
	if _, err := signals.ReadToken(token); err != nil && !errors.As(err, new(*os.PathError)) { // one that cannot be read is named already
		rep.addProblem("admin.signals.token", Problem{Message: err.Error()})
	}
}

// minWatermarks bounds how often watermarks are written.
const minWatermarks = time.Second

// validateWatermarks checks how often a sink gets watermarks, and that its lanes are shared by all objects of a resource.
func validateWatermarks(rep *reporter, at string, s Sink, routes []Route) {
	switch {
	case s.Watermarks == 0:
		return
	case s.Watermarks < minWatermarks:
		rep.addProblem(at, Problem{Message: "too short, or negative", Found: s.Watermarks.String(), Expected: "at least 1s, or 0s for none"})
	case s.Kafka != nil:
		for _, topic := range append([]string{s.Kafka.Topic}, routedTopicTexts(s.Name, routes)...) {
			if name := objectPlaceholder(topic); name != "" {
				rep.addProblem(at, Problem{
					Message: fmt.Sprintf("a watermark is about a whole resource, and the topic %s depends on the object", strconv.Quote(topic)),
					Found:   s.Watermarks.String(), Expected: fmt.Sprintf("0s, or a topic without {%s}", name)})
				return
			}
		}
	}
}

func routedTopicTexts(sink string, routes []Route) (topics []string) {
	for _, r := range routes {
		for _, to := range r.To {
			if to.Sink == sink && to.Topic != "" {
				topics = append(topics, to.Topic)
			}
		}
	}
	return topics
}

// objectPlaceholder returns a placeholder of a topic that makes it depend on the object or the change; "" if there is none.
func objectPlaceholder(topic string) string {
	t, err := sinks.ParseTemplate(topic)
	if err != nil { // reported elsewhere
		return ""
	}
	for name := range strings.FieldsSeq("namespace name type") {
		if t.UsesPlaceholder(name) {
			return name
		}
	}
	return ""
}

const (
	minJournalBytes    Bytes = 16 << 20 // below it the files of the store itself take most of the space
	minDeadLetterBytes Bytes = 1 << 20
	minRetry                 = time.Millisecond
	maxRetry                 = 24 * time.Hour
	minSuspect               = time.Second
	minWindowBytes     Bytes = 1 << 20 // the largest object that etcd stores is 1.5 MiB; a smaller window holds one at a time
)

func validateJournal(rep *reporter, j Journal) {
	rep.refuseIf(j.Dir == "", "journal.dir", Problem{Message: "is empty", Expected: "a directory"})
	dir := resolvePath(j.Dir)
	rep.refuseIf(dir == "/" || isWithin(dir, "/proc") || isWithin(dir, "/sys"), "journal.dir",
		Problem{Message: "no place for a journal, which needs a directory of its own", Found: strconv.Quote(j.Dir),
			Expected: `a directory such as "/var/lib/kubecdc"`})
	checkMinBytes(rep, "journal.maxBytes", j.MaxBytes, minJournalBytes)
	checkMinBytes(rep, "journal.maxDeadLetters", j.MaxDeadLetters, minDeadLetterBytes)
	rep.checkOneOf("journal.sync", j.Sync, "always", "interval")
}

// warnJournalBounds warns of a bound that is never reached, because another one is lower.
func warnJournalBounds(rep *reporter, j Journal) {
	rep.warnIf(rep.isSet("journal.maxDeadLetters") && j.MaxDeadLetters > j.MaxBytes/2, "journal.maxDeadLetters",
		Problem{Message: "more than half of journal.maxBytes, so half of it is the bound",
			Found: j.MaxDeadLetters.String(), Expected: "at most " + (j.MaxBytes / 2).String()})
}

func validateDelivery(rep *reporter, c Delivery) {
	rep.refuseIf(c.Retry.Min < minRetry, "delivery.retry.min",
		Problem{Message: "too short", Found: c.Retry.Min.String(), Expected: "at least " + minRetry.String()})
	rep.refuseIf(c.Retry.Max > maxRetry, "delivery.retry.max",
		Problem{Message: "too long: a destination that works again gets nothing meanwhile",
			Found: c.Retry.Max.String(), Expected: "at most " + maxRetry.String()})
	rep.refuseIf(c.Retry.Max < c.Retry.Min, "delivery.retry.max",
		Problem{Message: "less than delivery.retry.min", Found: c.Retry.Max.String(),
			Expected: "at least " + c.Retry.Min.String()})
	if s := c.Rejections.Suspect; s != 0 && s < minSuspect {
		rep.addProblem("delivery.rejections.suspect", Problem{Message: "too short: a pause between two changes looks like an outage",
			Found: s.String(), Expected: "at least " + minSuspect.String() + ", or 0s for never"})
	}
	rep.refuseIf(c.Window != 0 && c.Window < minWindowBytes, "delivery.window",
		Problem{Message: "too small", Found: c.Window.String(),
			Expected: "at least " + minWindowBytes.String() + ", or 0 for one by the number of lanes"})
}

func checkMinBytes(rep *reporter, path string, value, minimum Bytes) {
	rep.refuseIf(value < minimum, path,
		Problem{Message: "too small", Found: value.String(), Expected: "at least " + minimum.String()})
}
