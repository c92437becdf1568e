package inspect

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	authorization "k8s.io/api/authorization/v1"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// pingTimeout bounds the ping of one destination.
const pingTimeout = 15 * time.Second

// maxTopicsChecked bounds the Kafka topics that are checked per sink.
const maxTopicsChecked = 50

// Finding is one line of a checklist: a check and its problem.
type Finding struct {
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"` // the problem and its remedy; "" for none
	Minor  bool   `json:"minor,omitempty"`  // the exporter works despite the problem, or will
}

// Checklist is the result of [CheckOnline], in the order of the configuration.
type Checklist []Finding

// OK reports whether there are no problems, except minor ones.
func (l Checklist) OK() bool {
	return !slices.ContainsFunc(l, func(f Finding) bool { return f.Reason != "" && !f.Minor })
}

// WriteText writes a line for each finding, marked as on /readyz: [+] ok, [!] warning, [-] problem.
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

// CheckOnline checks that an exporter with this configuration would work: the selected resources are served and may be read,
// and every destination answers, accepts the credentials and has the configured topics. It writes and creates nothing.
func CheckOnline(ctx context.Context, cfg *config.Config, version string) Checklist {
	all, report := checkCluster(ctx, cfg, version)
	all = append(all, checkElection(ctx, cfg, version)...)
	for _, s := range cfg.Sinks {
		all = append(all, checkSink(ctx, cfg, s, report)...)
	}
	return all
}

// checkCluster checks the API server and the selected resources; report is nil if the API server does not answer.
func checkCluster(ctx context.Context, cfg *config.Config, version string) (all Checklist, report *Report) {
	report, err := buildReport(ctx, cfg, version)
	if err != nil {
		return Checklist{{Name: "cluster", Reason: err.Error()}}, nil
	}
	all = append(all, Finding{Name: "cluster at " + report.Server, Reason: report.ClusterUnknown, Minor: cfg.Cluster.Name != ""})
	for _, group := range report.Unanswered {
		all = append(all, Finding{Name: "group " + group, Reason: "its resources could not be discovered", Minor: true})
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
			all = append(all, Finding{Name: rule.Path, Reason: "selects no served resource", Minor: true})
		} else if readable > 0 {
			all = append(all, Finding{Name: name})
		}
	}
	return all, report
}

// checkSink checks the destination of a sink, for Kafka with each topic that changes of the selected resources go to.
func checkSink(ctx context.Context, cfg *config.Config, s config.Sink, report *Report) Checklist {
	name := "sink/" + s.Name
	topics := knownTopics(s, report)
	if len(topics) == 0 {
		return Checklist{pingSink(ctx, cfg, s, name)}
	}
	var all Checklist
	for i, topic := range topics {
		if i == maxTopicsChecked {
			return append(all, Finding{Name: name, Reason: fmt.Sprintf("%d more topics were not checked", len(topics)-i), Minor: true})
		}
		f := pingSink(ctx, cfg, withTopic(s, topic), name+"/"+topic)
		if all = append(all, f); f.Reason != "" && !f.Minor && !strings.Contains(f.Reason, topic) {
			return all // the error does not depend on the topic, so other topics would fail too
		}
	}
	return all
}

// knownTopics returns the Kafka topics of the selected resources without placeholders; none for other sinks.
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

// pingSink pings the destination of a sink. It creates nothing there.
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
	if s.Stdout != nil { // validate has checked the file, and opening would create it
		return Finding{Name: name}
	}
	destination, err := app.OpenDestination(&one, s.Name)
	if err != nil {
		return Finding{Name: name, Reason: err.Error()}
	}
	asking, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	asked, err := destination.Ping(asking)
	warning := destination.Warning()
	if closed := destination.Close(ctx); err == nil {
		err = closed
	}
	switch {
	case err == nil && !asked:
		return Finding{Name: name, Reason: "cannot be checked without sending a message", Minor: true}
	case err == nil:
		return Finding{Name: name, Reason: warning, Minor: warning != ""}
	case creates && strings.Contains(err.Error(), "does not exist"):
		return Finding{Name: name, Reason: "does not exist yet; the first start creates it, if the account is allowed to", Minor: true}
	}
	return Finding{Name: name, Reason: err.Error()}
}

// checkElection checks the rights of the current credentials on the configured Lease.
func checkElection(ctx context.Context, cfg *config.Config, version string) Checklist {
	if !cfg.Election.Enabled() {
		return nil
	}
	f := Finding{Name: "election/" + cfg.Election.Lease}
	client, err := app.NewClient(cfg, version)
	if err != nil {
		f.Reason = err.Error()
		return Checklist{f}
	}
	defer client.Close()
	var missing []string
	for _, verb := range []string{"get", "update", "watch", "create"} {
		ctx, cancel := context.WithTimeout(ctx, apiserver.RequestTimeout)
		answer, err := createAccessReview(ctx, client, leaseAttributes(cfg.Election, verb))
		cancel()
		if err != nil {
			f.Reason, f.Minor = "the rights on the Lease could not be queried: "+apiserver.Reason(err), true
			return Checklist{f}
		}
		if !answer.Allowed {
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		f.Reason = fmt.Sprintf("the account is not allowed to %s the Lease; `exporter rbac` prints the rights", strings.Join(missing, ", "))
	}
	return Checklist{f}
}

// leaseAttributes returns the attributes of a request on the Lease. A create request has no object name.
func leaseAttributes(e config.Election, verb string) *authorization.ResourceAttributes {
	namespace, name := e.NamespacedName()
	if verb == "create" {
		name = ""
	}
	return &authorization.ResourceAttributes{Verb: verb, Group: "coordination.k8s.io", Version: "v1", Resource: "leases", Namespace: namespace, Name: name}
}
