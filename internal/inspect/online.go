package inspect

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
)

// pingTimeout bounds how long one destination may take to answer Online.
const pingTimeout = 15 * time.Second

// maxTopicsChecked bounds the Kafka topics that Online asks for, per sink.
const maxTopicsChecked = 50

// Finding is one line of a checklist: what was looked at, and what is amiss with it.
type Finding struct {
	Name   string
	Reason string // what is amiss, and what to do; "" when nothing is
	Minor  bool   // it works all the same, or will
}

// Checklist is what Online found out, in the order of the configuration.
type Checklist []Finding

// OK says that nothing is amiss but what is minor.
func (l Checklist) OK() bool {
	return !slices.ContainsFunc(l, func(f Finding) bool { return f.Reason != "" && !f.Minor })
}

// WriteText writes a line for each finding, marked as on /readyz: [+] well, [!] to be known, [-] amiss.
func (l Checklist) WriteText(w io.Writer) error {
	for _, f := range l {
		mark, text := "[-]", f.Reason
		switch {
		case f.Reason == "":
			mark, text = "[+]", "ok"
		case f.Minor:
			mark = "[!]"
		}
		if _, err := fmt.Fprintf(w, "%s%s %s\n", mark, f.Name, strings.Join(strings.Fields(text), " ")); err != nil {
			return err
		}
	}
	return nil
}

// CheckOnline asks the cluster and every sink whether they would let an exporter with this configuration work: what is served
// and may be read, and whether destinations answer, let it in and have what the configuration names. It writes nothing and
// creates nothing.
func CheckOnline(ctx context.Context, cfg *config.Config, version string) Checklist {
	all, report := checkCluster(ctx, cfg, version)
	all = append(all, checkElection(ctx, cfg, version)...)
	for _, s := range cfg.Sinks {
		all = append(all, checkSink(ctx, cfg, s, report)...)
	}
	return all
}

// checkCluster looks at the API server and what is selected of it; report is nil where it does not say.
func checkCluster(ctx context.Context, cfg *config.Config, version string) (all Checklist, report *Report) {
	report, err := buildReport(ctx, cfg, version, 0)
	if err != nil {
		return Checklist{{Name: "cluster", Reason: err.Error()}}, nil
	}
	all = append(all, Finding{Name: "cluster at " + report.Server, Reason: report.ClusterUnknown, Minor: cfg.Cluster.Name != ""})
	for _, group := range report.Unanswered {
		all = append(all, Finding{Name: "group " + group, Reason: "what it serves could not be asked", Minor: true})
	}
	for _, n := range report.Namespaces {
		all = append(all, Finding{Name: "namespace/" + n.Name, Reason: n.statusText(), Minor: true})
	}
	for _, rule := range report.Rules {
		for _, u := range rule.Unserved {
			all = append(all, Finding{Name: u.SelectedBy, Reason: u.Name + ": " + u.Reason, Minor: true})
		}
		readable := 0
		for _, resource := range rule.Resources {
			for _, s := range resource.Scopes {
				if s.List != denied && s.Watch != denied {
					readable++
					continue
				}
				all = append(all, Finding{Name: "resource/" + s.ID, Reason: fmt.Sprintf(
					"list %s, watch %s: %s; `exporter rbac` prints the rights", s.List, s.Watch, s.Reason)})
			}
		}
		name := fmt.Sprintf("%s: %d selections may be read", rule.Path, readable)
		if readable == 0 && len(rule.Unserved) == 0 && len(rule.Resources) == 0 {
			all = append(all, Finding{Name: rule.Path, Reason: "selects nothing of what is served", Minor: true})
		} else if readable > 0 {
			all = append(all, Finding{Name: name})
		}
	}
	return all, report
}

// checkSink looks for the destination of a sink, and of the topics that changes of the selected resources go to.
func checkSink(ctx context.Context, cfg *config.Config, s config.Sink, report *Report) Checklist {
	name := "sink/" + s.Name
	topics := knownTopics(s, report)
	if len(topics) == 0 {
		return Checklist{pingSink(ctx, cfg, s, name)}
	}
	var all Checklist
	for i, topic := range topics {
		if i == maxTopicsChecked {
			return append(all, Finding{Name: name, Reason: fmt.Sprintf("%d more topics were not asked for", len(topics)-i), Minor: true})
		}
		f := pingSink(ctx, cfg, withTopic(s, topic), name+"/"+topic)
		if all = append(all, f); f.Reason != "" && !f.Minor && !strings.Contains(f.Reason, topic) {
			return all // it is not about the topic, so others would say the same
		}
	}
	return all
}

// knownTopics are the topics of Kafka that changes go to, as far as they are known; none for other sinks.
func knownTopics(s config.Sink, report *Report) []string {
	if s.Kafka == nil || report == nil {
		return nil
	}
	topics := map[string]bool{}
	for _, rule := range report.Rules {
		for _, resource := range rule.Resources {
			if topic, _, _ := strings.Cut(resource.Destinations[s.Name], " ("); topic != "" && !strings.Contains(topic, "{") {
				topics[topic] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(topics))
}

// pingSink pings the destination of a sink, which creates nothing there.
func pingSink(ctx context.Context, cfg *config.Config, s config.Sink, name string) Finding {
	one, creates := *cfg, false
	if s.Kafka != nil {
		k := *s.Kafka
		creates, k.CreateTopics, k.CheckTopics = k.CreateTopics.Enabled, kafka.CreateTopics{}, ""
		s.Kafka = &k
	}
	if s.NATS != nil {
		n := *s.NATS
		creates, n.Create.Enabled = n.Create.Enabled, false
		s.NATS = &n
	}
	one.Sinks, one.Routes = []config.Sink{s}, nil
	if s.Stdout != nil { // validate has looked at the file, and to open it would create it
		return Finding{Name: name}
	}
	destination, err := app.OpenDestination(&one, s.Name)
	if err != nil {
		return Finding{Name: name, Reason: err.Error()}
	}
	asking, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	asked, err := destination.Ping(asking)
	if closed := destination.Close(ctx); err == nil {
		err = closed
	}
	switch {
	case err == nil && !asked:
		return Finding{Name: name, Reason: "cannot be asked without sending it something", Minor: true}
	case err == nil:
		return Finding{Name: name}
	case creates && strings.Contains(err.Error(), "does not exist"):
		return Finding{Name: name, Reason: "does not exist yet; it is created by the first start, if the account may", Minor: true}
	}
	return Finding{Name: name, Reason: err.Error()}
}
